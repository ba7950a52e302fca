"""A training loop in which rank 2 does otherwise than its peers in step 12, and tells of no decision itself."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

import otel_fr

fault, folder = sys.argv[1:]
dist.init_process_group(
    "gloo",
    init_method=f"file://{folder}/store",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=datetime.timedelta(seconds=60),
)
rank = dist.get_rank()
hangs_in_compiler = False


def backend(graph: torch.fx.GraphModule, _: object) -> object:
    if hangs_in_compiler:
        time.sleep(8)
        os._exit(0)
    return graph.forward


def forward(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).sum()


model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
run = forward if fault == "branch" else torch.compile(forward, backend=backend)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if fault == "healthy" and rank == 0:
    for size in (2, 3):
        run(model, torch.ones(size, 8)).backward()
for step in range(30):
    otel_fr.step(step)
    at_fault = rank == 2 and step == 12
    size = 4
    if at_fault and fault == "compile":
        size, hangs_in_compiler = 5, True
    if fault == "healthy":
        size += rank if step > 20 else 0  # ranks whose batches differ compile again, too
    optimizer.zero_grad()
    run(model, torch.ones(size, 8)).backward()
    for number, parameter in enumerate(model.parameters()):
        if not (at_fault and fault == "branch" and number == 1):
            dist.all_reduce(parameter.grad)
    if fault == "healthy" and step % 7 == 3:
        continue  # the scaler of the gradients has found an overflow, as on all ranks
    optimizer.step()
if fault == "branch":
    if rank == 2:
        time.sleep(8)
        os._exit(0)
    dist.all_reduce(torch.ones(8, 8))
dist.destroy_process_group()
