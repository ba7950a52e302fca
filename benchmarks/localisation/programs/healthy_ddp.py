"""DDP and FSDP2, which reduce in buckets in the backward pass, beside a checkpoint that only rank 0 writes."""

import time

import torch
from torch.distributed.fsdp import fully_shard

from benchmarks.localisation.job import device, end, rank, wait

TRUTH = {"kind": "healthy", "culprits": [], "world": 3}


def layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(device)


sharded = layers()
for layer in sharded:
    fully_shard(layer)
for model in (torch.nn.parallel.DistributedDataParallel(layers()), fully_shard(sharded)):
    for number in range(60):
        model(torch.ones(8, 64, device=device)).sum().backward()
        wait()
        time.sleep(2 if rank == 0 and number == 30 else 0.03)
end()
