"""Ranks come to a collective one by one, and rank 2 not at all. Knows nothing of otel-fr. Ends on its own."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

steps, pause = int(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))
rank = dist.get_rank()
data = torch.ones(64)
for _ in range(steps):
    dist.all_reduce(data)
    time.sleep(0.1)
if rank == 2:
    time.sleep(25)  # stands for a dead file server
    os._exit(0)
time.sleep(pause * rank)
dist.all_reduce(data)
