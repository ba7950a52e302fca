"""Ranks 0 to 2 reduce in a group, rank 2 with another operator. Rank 3 is stuck, and all wait for it."""

import time

import torch.distributed as dist

from benchmarks.localisation.job import data, fault, new_group, rank, step, wait

TRUTH = {"kind": "two faults", "culprits": [[2, 3]], "world": 4}

three = new_group([0, 1, 2])
for _ in range(20):
    step()
if rank >= 2:
    fault()
if rank == 3:
    time.sleep(3600)
dist.all_reduce(data, op=dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM, group=three)
wait()
step()
