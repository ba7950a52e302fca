"""Rank 1 is 9 seconds late, once. PyTorch's timeout is longer, and the job continues."""

import time

from benchmarks.localisation.job import end, fault, rank, step

TRUTH = {"kind": "late", "culprits": [[1]], "world": 3, "is_timed": True}

for number in range(150):
    if rank == 1 and number == 20:
        fault()
        time.sleep(9)
    step()
end()
