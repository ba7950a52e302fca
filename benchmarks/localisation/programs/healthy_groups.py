"""Two groups with a common rank. The first is used far more often than the second."""

import time

import torch.distributed as dist

from benchmarks.localisation.job import data, end, new_group, rank, step, wait

TRUTH = {"kind": "healthy", "culprits": [], "world": 4}

pair, others = new_group([0, 1]), new_group([1, 2, 3])
for number in range(60):
    if rank < 2:
        for _ in range(10):
            dist.all_reduce(data, group=pair)
        wait()
    if rank and number % 6 == 0:
        time.sleep(0.5 * (rank == 3))
        dist.all_reduce(data, group=others)
        wait()
    step()
end()
