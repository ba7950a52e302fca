"""Ranks that work until there is a file ``go``. The last rank is in another function. The job does not use otel-fr."""

import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
data = torch.ones(64)
flag = torch.zeros(1)


def compute_loss() -> None:
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        data.sum()


while not flag.item():
    if rank == world - 1:
        compute_loss()
    flag.fill_(float(Path("go").exists()))
    dist.all_reduce(flag)
    Path(f"works-{rank}").touch()
dist.destroy_process_group()
