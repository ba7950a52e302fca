"""Before a collective, rank 1 enqueues a kernel that does not end. Its host is as far as the others."""

import torch

from benchmarks.localisation.job import fault, rank, step

TRUTH = {"kind": "device busy", "culprits": [[1]], "world": 3, "needs": "device", "is_timed": True}

for _ in range(20):
    step()
if rank == 1:
    fault()
    torch.cuda._sleep(10**12)
while True:
    step()
