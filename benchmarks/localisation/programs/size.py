"""Rank 2's last batch is smaller than the other ranks' batches."""

import torch.distributed as dist

from benchmarks.localisation.job import FLOATS, data, fault, rank, step, wait

TRUTH = {"kind": "size", "culprits": [[2]], "world": 3}

for _ in range(20):
    step()
if rank == 2:
    fault()
dist.all_reduce(data[: FLOATS // 2] if rank == 2 else data)
wait()
for _ in range(500):
    step()
