"""An extension in rank 1 keeps the GIL for two seconds, twice."""

import ctypes

from benchmarks.localisation.job import end, rank, step

TRUTH = {"kind": "healthy", "culprits": [], "world": 3}

for number in range(120):
    if rank == 1 and number in (30, 80):
        ctypes.PyDLL(None).usleep(2_000_000)
    step()
end()
