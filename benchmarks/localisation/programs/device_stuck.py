"""Rank 1's device executes nothing more."""

from benchmarks.localisation.job import device_fault, rank, step

TRUTH = {"kind": "device stuck", "culprits": [[1]], "world": 3, "needs": "simulated device", "is_timed": True}

for _ in range(20):
    step()
if rank == 1:
    device_fault("stuck rank=1")
while True:
    step()
