"""In rank 1 a regular expression takes forever and keeps the GIL."""

import re

from benchmarks.localisation.job import fault, rank, step

TRUTH = {"kind": "gil", "culprits": [[1]], "world": 3}

for number in range(50):
    if rank == 1 and number == 20:
        fault()
        re.match("(a+)+$", "a" * 40 + "b")
    step()
