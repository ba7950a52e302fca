"""Two groups of all ranks, A and B. Rank 0 takes A first, the others B, and each reads a value in between."""

import torch.distributed as dist

from benchmarks.localisation.job import data, fault, new_group, rank, wait, world

TRUTH = {"kind": "deadlock", "culprits": [[0], [0, 1, 2]], "world": 3}

groups = [new_group(range(world)) for _ in "AB"]
for number in range(50):
    order = groups
    if number == 20:
        fault()
        if rank > 0:
            order = groups[::-1]
    for group in order:
        dist.all_reduce(data, group=group)
        wait()
