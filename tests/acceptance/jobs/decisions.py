"""A training loop in which rank 1 decides otherwise than its peers, and leaves the step's collective out."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

import otel_fr

fault, folder = sys.argv[1:]
dist.init_process_group(
    "gloo",
    init_method=f"file://{folder}/store",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=datetime.timedelta(seconds=60),
)
rank = dist.get_rank()
for step in range(30 if fault != "wrong_op" else 2000):
    otel_fr.step(step)
    skip = rank == 1 and step == 12 and fault == "skip"
    otel_fr.decision("writes_log", rank == 0)
    otel_fr.decision("batch", tuple(torch.ones(4 + step % 3, 2).shape))
    otel_fr.decision("skip_batch", skip)
    if rank == 2 and step % 5 == 2 and fault == "healthy":
        otel_fr.decision("extra", step)
    if skip:
        time.sleep(6)
        os._exit(0)
    clips = rank == 1 and step == 12 and fault == "wrong_op"
    otel_fr.decision("clips", clips)
    dist.all_reduce(torch.ones(64), op=dist.ReduceOp.MAX if clips else dist.ReduceOp.SUM)
    if fault == "wrong_op":
        time.sleep(0.03)  # a step; the test ends the job
dist.destroy_process_group()
