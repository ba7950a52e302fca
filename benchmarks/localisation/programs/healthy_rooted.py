"""Gather and scatter, with another root in each step. Only the root has the lists."""

import torch
import torch.distributed as dist

from benchmarks.localisation.job import data, end, rank, step, world

TRUTH = {"kind": "healthy", "culprits": [], "world": 3}

small = data[:16].contiguous()
for number in range(120):
    root = number % world
    pieces = [torch.empty_like(small) for _ in range(world)]
    dist.gather(small, pieces if rank == root else None, dst=root)
    dist.scatter(torch.empty_like(small), pieces if rank == root else None, src=root)
    step()
end()
