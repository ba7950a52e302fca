"""Four stages. Rank 2 compiles and never ends. Rank 3 waits for its input, ranks 0 and 1 for their gradients."""

import time

import torch
import torch.distributed as dist

from benchmarks.localisation.job import data, fault, rank, wait, world

TRUTH = {"kind": "missing", "culprits": [[2]], "world": 4}

got = torch.empty_like(data)
for number in range(50):
    if rank:
        dist.recv(got, rank - 1)
        wait()
    if rank == 2 and number == 20:
        fault()
        time.sleep(3600)
    if rank < world - 1:
        dist.send(data, rank + 1)
        dist.recv(got, rank + 1)
        wait()
    if rank:
        dist.send(data, rank - 1)
    wait()
