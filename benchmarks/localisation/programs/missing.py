"""Rank 1 reads its next batch from a file server that does not answer; the others are in the next step."""

import time

from benchmarks.localisation.job import fault, rank, step

TRUTH = {"kind": "missing", "culprits": [[1]], "world": 3, "larger": 8, "is_timed": True}

for number in range(50):
    if rank == 1 and number == 20:
        fault()
        time.sleep(3600)
    step()
