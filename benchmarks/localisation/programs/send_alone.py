"""Rank 0 sends its activations; rank 1 does not come to receive them."""

import time

import torch
import torch.distributed as dist

from benchmarks.localisation.job import data, fault, rank, step, wait

TRUTH = {"kind": "p2p", "culprits": [[1]], "world": 3}

got = torch.empty_like(data)
for number in range(50):
    if rank == 0:
        dist.send(data, 1)
    elif rank == 1:
        if number == 20:
            fault()
            time.sleep(3600)
        dist.recv(got, 0)
    wait()
    step()
