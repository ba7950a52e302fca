"""Rank 1 fails in the first attempt; the second goes well. Knows nothing of otel-fr."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

attempt, rank, world = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
# A store for each attempt: in torchrun's own, gloo's second attempt may find the addresses of the first.
store = dist.FileStore(f"{sys.argv[1]}.{attempt}", world)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=20))
data = torch.ones(64)
dist.all_reduce(data)
if rank == 1 and attempt == 0:
    raise ValueError("bad sample 4711")
for _ in range(80):
    dist.all_reduce(data)
    time.sleep(0.05)
dist.destroy_process_group()
