"""Rank 1 keeps its gradients in float64; both sides have the same number of elements."""

import torch.distributed as dist

from benchmarks.localisation.job import data, fault, rank, step, wait

TRUTH = {"kind": "dtype", "culprits": [[1]], "world": 3}

for _ in range(20):
    step()
if rank == 1:
    fault()
dist.all_reduce(data.double() if rank == 1 else data)
wait()
for _ in range(500):
    step()
