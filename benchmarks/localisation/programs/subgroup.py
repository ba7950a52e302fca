"""Rank 1 does not come to its group of two: rank 0 waits for it there, and rank 2 waits for rank 0."""

import time

import torch.distributed as dist

from benchmarks.localisation.job import data, fault, new_group, rank, step, wait

TRUTH = {"kind": "sub-group", "culprits": [[1]], "world": 3}

pair = new_group([0, 1])
for number in range(50):
    if rank == 1 and number == 20:
        fault()
        time.sleep(3600)
    if rank < 2:
        dist.all_reduce(data, group=pair)
        wait()
    step()
