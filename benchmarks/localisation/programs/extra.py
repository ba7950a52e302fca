"""Rank 2 reduces its gradients twice in one step."""

import torch
import torch.distributed as dist

from benchmarks.localisation.job import data, device, fault, rank, wait

TRUTH = {"kind": "extra", "culprits": [[2]], "world": 3}

loss = torch.ones(1, device=device)
for number in range(50):
    dist.all_reduce(data)
    if rank == 2 and number == 20:
        fault()
        dist.all_reduce(data)
    dist.broadcast(loss, src=0)
    wait()
