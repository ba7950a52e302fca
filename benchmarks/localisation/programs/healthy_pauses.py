"""Every rank pauses for two seconds in turn, as for Python's garbage collection or a file server."""

import time

from benchmarks.localisation.job import end, rank, step, world

TRUTH = {"kind": "healthy", "culprits": [], "world": 3, "larger": 8, "is_timed": True}

for number in range(120):
    if number % 30 == 0 and number // 30 % world == rank:
        time.sleep(2)
    step()
end()
