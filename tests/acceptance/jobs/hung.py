"""Trains with DDP until rank 2 hangs in `load_shard`; continues to the end once the file argv[1] is there."""

import os
import sys
import time

import torch
import torch._dynamo  # DDP loads it in its first step; on a busy machine that takes so long that it counts as a hang
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HANGS_AT = 5


def load_shard(step: int) -> torch.Tensor:
    while step == HANGS_AT and dist.get_rank() == 2 and not os.path.exists(sys.argv[1]):
        time.sleep(0.05)  # stands for a dead file server
    return torch.randn(8, 16)


def train() -> None:
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(HANGS_AT + 3):
        batch = load_shard(step)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
