"""Hybrid-parallel and pipelined jobs with one fault, named by argv[1]. Knows nothing of otel-fr. Ends on its own.

Four ranks: tensor-parallel pairs (0, 1), (2, 3) and data-parallel pairs (0, 2), (1, 3); or a pipeline of four stages.
"""

import datetime
import sys
import time

import torch
import torch.distributed as dist

fault = sys.argv[1]
patience = datetime.timedelta(seconds=5)
dist.init_process_group("gloo", timeout=patience)
rank = dist.get_rank()
data = torch.ones(64)


def group(members: list[list[int]], name: str) -> dist.ProcessGroup:
    """The one of these groups that this rank is in."""
    made = [dist.new_group(ranks, timeout=patience, group_desc=name) for ranks in members]
    return next(one for one, ranks in zip(made, members, strict=True) if rank in ranks)


if fault in ("step_short", "step_long", "checkpoint", "healthy_mesh"):
    tp, dp = group([[0, 1], [2, 3]], "tp"), group([[0, 2], [1, 3]], "dp")
    everyone = group([[0, 1, 2, 3]], "checkpoint")
    steps = 12 + (rank == 3) * {"step_short": -1, "checkpoint": -1, "step_long": 1}.get(fault, 0)
    for _ in range(steps):
        dist.all_reduce(data, group=tp)
        dist.all_reduce(data, group=tp)
        dist.all_reduce(data, group=dp)
    if fault == "checkpoint":
        dist.all_gather_object([None] * 4, {"step": steps}, group=everyone)
    dist.barrier()
elif fault == "stage_stuck":
    for micro_batch in range(6):
        if rank > 0:
            dist.recv(data, src=rank - 1)
        if (rank, micro_batch) == (1, 4):
            time.sleep(60)  # stands for a dead file server; the launcher ends it
        if rank < 3:
            dist.send(data, dst=rank + 1)
    dist.barrier()
elif fault == "any_source":
    if rank == 0:
        dist.recv(data)  # no rank sends
    dist.barrier()
else:
    sys.exit(f"no such fault: {fault}")
dist.destroy_process_group()
