"""Rank 1 reduces its counters as float32, the others as int32: equally many bytes, and wrong numbers."""

import torch
import torch.distributed as dist

from benchmarks.localisation.job import FLOATS, device, fault, rank, step

TRUTH = {"kind": "dtype", "culprits": [[1]], "world": 3}

for _ in range(20):
    step()
if rank == 1:
    fault()
counters = torch.ones(FLOATS, dtype=torch.float32 if rank == 1 else torch.int32, device=device)
dist.all_reduce(counters)
for _ in range(500):
    step()
