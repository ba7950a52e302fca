"""Rank 1's device takes 200 ms for each kernel, from one moment on; the job continues, slowly."""

from benchmarks.localisation.job import device_fault, end, rank, step

TRUTH = {"kind": "slow device", "culprits": [[1]], "world": 3, "needs": "simulated device", "is_timed": True}

for _ in range(20):
    step()
if rank == 1:
    device_fault("late rank=1 ms=200")
for _ in range(100):
    step()
end()
