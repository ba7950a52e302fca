"""Two pairs of ranks. In the first, rank 1 reads and never ends. In the second, rank 3 is stopped."""

import os
import signal
import time

import torch.distributed as dist

from benchmarks.localisation.job import data, fault, new_group, rank, wait

TRUTH = {"kind": "two faults", "culprits": [[1, 3]], "world": 4}

pairs = [new_group(ranks) for ranks in ([0, 1], [2, 3])]
for number in range(50):
    if rank == 1 and number == 20:
        fault()
        time.sleep(3600)
    if rank == 3 and number == 20:
        fault()
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(data, group=pairs[rank // 2])
    wait()
    time.sleep(0.02)
