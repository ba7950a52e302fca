"""Rank 1 takes ten times as long for each step as the others; the job continues, slowly."""

import time

from benchmarks.localisation.job import end, fault, rank, step

TRUTH = {"kind": "slow rank", "culprits": [[1]], "world": 3, "is_timed": True}

if rank == 1:
    fault()
for _ in range(100):
    if rank == 1:
        time.sleep(0.2)
    step()
end()
