"""FSDP2. Rank 0 alone evaluates the model: its all_gathers have no partner, and the others are in the barrier."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from benchmarks.localisation.job import device, fault, rank, wait

TRUTH = {"kind": "operation", "culprits": [[0]], "world": 3}

model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)]).to(device)
for layer in model:
    fully_shard(layer)
fully_shard(model)
for _ in range(10):
    model(torch.ones(8, 64, device=device)).sum().backward()
if rank == 0:
    fault()
    with torch.no_grad():
        model(torch.ones(8, 64, device=device))
dist.barrier()
wait()
