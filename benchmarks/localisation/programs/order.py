"""Rank 2 gathers before it reduces; the others reduce first."""

import torch
import torch.distributed as dist

from benchmarks.localisation.job import FLOATS, data, device, fault, rank, wait, world

TRUTH = {"kind": "order", "culprits": [[2]], "world": 3, "larger": 8}

gathered = torch.zeros(world * FLOATS, device=device)
for number in range(50):
    if rank == 2 and number == 20:
        fault()
        dist.all_gather_into_tensor(gathered, data)
        dist.all_reduce(data)
    else:
        dist.all_reduce(data)
        dist.all_gather_into_tensor(gathered, data)
    wait()
