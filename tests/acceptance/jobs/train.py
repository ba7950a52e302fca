"""Trains a little and writes its exact results. It does not use otel-fr.

argv: a file for rank 0's losses and parameters, and the mode:
  plain       nothing
  slow        0.1 s a step, for things that happen meanwhile
"""

import os
import struct
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

out, how = sys.argv[1], sys.argv[2]
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
for step in range(25):
    batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * world + rank))
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total, op=dist.ReduceOp.MAX)
    losses.append(total.item())
    if step == 5 and rank == 0:
        print("TRAINING", os.getpid(), flush=True)
    if how == "slow":
        time.sleep(0.1)
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
gathered = [None] * world
dist.all_gather_object(gathered, flat.sum().item())
if rank == 0:
    with open(out, "wb") as file:
        file.write(struct.pack(f"<{len(losses)}d", *losses) + flat.numpy().tobytes() + repr(gathered).encode())
del model  # see straggler.py
dist.destroy_process_group()
