"""Rank 2 passes itself as the root of a broadcast."""

import torch.distributed as dist

from benchmarks.localisation.job import data, fault, rank, step, wait

TRUTH = {"kind": "root", "culprits": [[2]], "world": 3}

for _ in range(20):
    step()
if rank == 2:
    fault()
dist.broadcast(data, src=2 if rank == 2 else 0)
wait()
for _ in range(500):
    step()
