"""A collective ends on all devices except rank 1's."""

from benchmarks.localisation.job import device_fault, rank, step

TRUTH = {"kind": "endless kernel", "culprits": [[1]], "world": 3, "needs": "simulated device", "is_timed": True}

for _ in range(20):
    step()
if rank == 1:
    device_fault("endless rank=1 after=25")
while True:
    step()
