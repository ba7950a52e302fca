"""Rank 1 takes the maximum, the others the sum."""

import torch.distributed as dist

from benchmarks.localisation.job import data, fault, rank, step, wait

TRUTH = {"kind": "reduce op", "culprits": [[1]], "world": 3}

for _ in range(20):
    step()
if rank == 1:
    fault()
dist.all_reduce(data, op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)
wait()
for _ in range(500):
    step()
