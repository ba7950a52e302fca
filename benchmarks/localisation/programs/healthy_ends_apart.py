"""The ranks leave one after the other: rank 0 writes a report for six seconds after the last collective."""

import time

from benchmarks.localisation.job import end, rank, step

TRUTH = {"kind": "healthy", "culprits": [], "world": 3}

for _ in range(120):
    step()
end()
time.sleep(6 - 3 * rank)
