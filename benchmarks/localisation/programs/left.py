"""Rank 2 finds that its data has ended, and leaves without a word: exit status 0."""

import os

from benchmarks.localisation.job import fault, rank, step

TRUTH = {"kind": "left", "culprits": [[2]], "world": 3}

for number in range(50):
    if rank == 2 and number == 20:
        fault()
        os._exit(0)
    step()
