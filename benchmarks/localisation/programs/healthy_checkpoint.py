"""Rank 0 writes a checkpoint for three seconds; the others wait in a barrier."""

import time

import torch.distributed as dist

from benchmarks.localisation.job import end, rank, step

TRUTH = {"kind": "healthy", "culprits": [], "world": 3}

for _ in range(2):
    for _ in range(50):
        step()
    if rank == 0:
        time.sleep(3)
    dist.barrier()
end()
