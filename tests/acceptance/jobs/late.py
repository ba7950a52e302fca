"""Rank 1 reads a file that is not there yet; the others wait for it. Knows nothing of otel-fr."""

import datetime
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=80))
rank = dist.get_rank()
data = torch.ones(64)


def read_shard(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


dist.all_reduce(data)
if rank == 1:
    read_shard(Path(sys.argv[1]))
for _ in range(60):
    dist.all_reduce(data)
    time.sleep(0.05)
dist.destroy_process_group()
