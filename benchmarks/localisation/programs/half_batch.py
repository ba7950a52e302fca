"""A ring of messages in which rank 1 leaves out its receive."""

import torch
import torch.distributed as dist

from benchmarks.localisation.job import data, fault, rank, step, wait, world

TRUTH = {"kind": "p2p", "culprits": [[1]], "world": 3}

got = torch.empty_like(data)
for number in range(50):
    ring = [
        dist.P2POp(dist.isend, data, (rank + 1) % world),
        dist.P2POp(dist.irecv, got, (rank - 1) % world),
    ]
    if rank == 1 and number == 20:
        fault()
        del ring[1]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    wait()
    step()
