"""Rank 2 broadcasts where the others reduce."""

import torch.distributed as dist

from benchmarks.localisation.job import data, fault, rank, step, wait

TRUTH = {"kind": "operation", "culprits": [[2]], "world": 3}

for _ in range(20):
    step()
if rank == 2:
    fault()
    dist.broadcast(data, src=0)
else:
    dist.all_reduce(data)
wait()
for _ in range(500):
    step()
