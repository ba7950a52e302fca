"""Rank 1 cannot decode a sample, and its exception ends it."""

from benchmarks.localisation.job import fault, rank, step

TRUTH = {"kind": "raised", "culprits": [[1]], "world": 3}

for number in range(50):
    if rank == 1 and number == 20:
        fault()
        raise ValueError("bad sample 4711")
    step()
