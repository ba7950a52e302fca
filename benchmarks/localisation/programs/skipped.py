"""Rank 1's loss is not finite, so it skips the reduction of the gradients in one step."""

import torch
import torch.distributed as dist

from benchmarks.localisation.job import data, device, fault, rank, wait

TRUTH = {"kind": "skipped", "culprits": [[1]], "world": 3, "larger": 8}

loss = torch.ones(1, device=device)
for number in range(50):
    dist.broadcast(loss, src=0)
    if rank == 1 and number == 20:
        fault()
    else:
        dist.all_reduce(data)
    wait()
