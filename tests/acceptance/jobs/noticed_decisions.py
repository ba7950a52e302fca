"""A training loop in which rank 2 does otherwise than its peers in step 12, and tells of no decision itself."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

import otel_fr

fault, folder = sys.argv[1:]
dist.init_process_group(
    "gloo",
    init_method=f"file://{folder}/store",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    # Ranks whose calls do not match wait for it.
    timeout=datetime.timedelta(seconds=20 if fault == "zero" else 60),
)
rank = dist.get_rank()
compiles = fault in ("compile", "healthy")
hangs_in_compiler = False


def backend(graph: torch.fx.GraphModule, _: object) -> object:
    if hangs_in_compiler:
        time.sleep(8)
        os._exit(0)
    return graph.forward


def forward(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).sum()


model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
run = torch.compile(forward, backend=backend) if compiles else forward
if fault == "zero":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if fault == "healthy" and rank == 0:
    for size in (2, 3):
        run(model, torch.ones(size, 8)).backward()
for step in range(30):
    if fault != "counted":
        otel_fr.step(step)
    at_fault = rank == 2 and step == 12
    size = 4
    if at_fault and fault == "compile":
        size, hangs_in_compiler = 5, True
    if fault == "healthy":
        size += rank if step > 20 else 0  # ranks whose batches differ compile again, too
    if fault == "shape":
        sends, receives = [1] * 4, [1] * 4
        if step == 12:
            sends[0] += rank == 2
            receives[2] += rank == 0
        dist.all_to_all_single(torch.empty(sum(receives), 8), torch.ones(sum(sends), 8), receives, sends)
        if at_fault:
            time.sleep(8)
            os._exit(0)
    optimizer.zero_grad()
    run(model, torch.ones(size, 8)).backward()
    for number, parameter in enumerate(model.parameters()):
        if not (at_fault and fault == "branch" and number == 1):
            dist.all_reduce(parameter.grad)
    if at_fault and fault in ("zero", "counted"):
        continue  # the scaler of the gradients has found an overflow
    if fault == "healthy" and step % 7 == 3:
        continue  # so it has on all ranks
    optimizer.step()
if fault in ("branch", "counted"):
    if rank == 2:
        time.sleep(8)
        os._exit(0)
    dist.all_reduce(torch.ones(8, 8))
dist.destroy_process_group()
