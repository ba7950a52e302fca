"""A training loop in which rank 1 decides otherwise than its peers once, and continues with wrong numbers."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

import otel_fr

dist.init_process_group(
    "gloo",
    init_method=f"file://{sys.argv[1]}/store",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=datetime.timedelta(seconds=60),
)
rank = dist.get_rank()
for step in range(2000):
    otel_fr.step(step)
    otel_fr.decision("writes_log", rank == 0)
    otel_fr.decision("batch", tuple(torch.ones(4 + step % 3, 2).shape))
    clips = rank == 1 and step == 12
    otel_fr.decision("clips", clips)
    dist.all_reduce(torch.ones(64), op=dist.ReduceOp.MAX if clips else dist.ReduceOp.SUM)
    time.sleep(0.03)  # a step; the test ends the job
dist.destroy_process_group()
