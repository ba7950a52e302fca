"""Only rank 0 comes to the barrier after the checkpoint; the others go on."""

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
