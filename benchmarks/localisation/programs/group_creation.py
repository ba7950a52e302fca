"""Rank 1 does not come to the creation of a process group."""

import time

import torch.distributed as dist

from benchmarks.localisation.job import TIMEOUT, data, fault, rank, step, wait, world

TRUTH = {"kind": "missing", "culprits": [[1]], "world": 3}

for _ in range(20):
    step()
if rank == 1:
    fault()
    time.sleep(3600)
group = dist.new_group(list(range(world)), timeout=TIMEOUT)
dist.all_reduce(data, group=group)
wait()
