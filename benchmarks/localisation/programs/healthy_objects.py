"""Settings and metrics are sent as Python objects. Their size differs from rank to rank."""

from typing import Any

import torch.distributed as dist

from benchmarks.localisation.job import end, rank, step, world

TRUTH = {"kind": "healthy", "culprits": [], "world": 3, "needs": "values"}

for number in range(100):
    settings: list[Any] = [{"number": number, "text": "x" * number} if rank == 0 else None]
    dist.broadcast_object_list(settings, src=0)
    metrics: list[Any] = [None] * world
    dist.all_gather_object(metrics, "x" * (rank * 100 + number))
    step()
end()
