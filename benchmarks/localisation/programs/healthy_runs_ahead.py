"""Rank 0 enqueues a hundred calls before it waits for any. Rank 1 makes them one by one."""

import time

import torch.distributed as dist

from benchmarks.localisation.job import data, end, rank, wait

TRUTH = {"kind": "healthy", "culprits": [], "world": 3, "is_timed": True}

for _ in range(4):
    works = []
    for _ in range(100):
        work = dist.all_reduce(data, async_op=True)
        if rank == 1:
            work.wait()
            wait()
            time.sleep(0.015)
        works.append(work)
    for work in works:
        work.wait()
    wait()
end()
