"""Only rank 0 calls the barrier after the checkpoint. The other ranks continue to train."""

import torch.distributed as dist

from benchmarks.localisation.job import fault, rank, step

TRUTH = {"kind": "extra", "culprits": [[0]], "world": 3}

for _ in range(20):
    step()
if rank == 0:
    fault()
    dist.barrier()
for _ in range(500):
    step()
