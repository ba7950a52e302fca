"""A training loop in which one rank acts differently from its peers in step 12. argv[1]: how; argv[2]: a folder.

told: all ranks report their decisions. Rank 1 takes another reduce op, and the job continues with wrong numbers until
there is a file ``stop``. compile: rank 2 has a batch of another shape, and compiles for long. branch: rank 2 leaves out
a collective. Its later calls meet the wrong calls of its peers until the end of the loop. healthy: no rank is at
fault.
"""

import datetime
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import otel_fr

kind, folder = sys.argv[1], Path(sys.argv[2])
dist.init_process_group(
    "gloo",
    init_method=f"file://{folder}/store",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=datetime.timedelta(seconds=60),
)
rank = dist.get_rank()
AT = 12


def told() -> None:
    is_over = torch.zeros(1)
    step = 0
    while not is_over.item():
        otel_fr.step(step)
        otel_fr.decision("writes_log", rank == 0)
        otel_fr.decision("batch", tuple(torch.ones(4 + step % 3, 2).shape))
        clips = rank == 1 and step == AT
        otel_fr.decision("clips", clips)
        dist.all_reduce(torch.ones(64), op=dist.ReduceOp.MAX if clips else dist.ReduceOp.SUM)
        is_over.fill_(float((folder / "stop").exists()))
        dist.all_reduce(is_over)
        time.sleep(0.03)
        step += 1


hangs_in_compiler = False


def backend(graph: torch.fx.GraphModule, _: object) -> object:
    if hangs_in_compiler:
        time.sleep(8)
        os._exit(0)
    return graph.forward


def forward(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).sum()


def untold() -> None:
    global hangs_in_compiler
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    run = forward if kind == "branch" else torch.compile(forward, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if kind == "healthy" and rank == 0:
        for size in (2, 3):
            run(model, torch.ones(size, 8)).backward()
    for step in range(30):
        otel_fr.step(step)
        at_fault = rank == 2 and step == AT
        size = 4
        if at_fault and kind == "compile":
            size, hangs_in_compiler = 5, True
        if kind == "healthy":
            size += rank if step > 20 else 0  # ranks with different batches compile again, too
        optimizer.zero_grad()
        run(model, torch.ones(size, 8)).backward()
        for number, parameter in enumerate(model.parameters()):
            if not (at_fault and kind == "branch" and number == 1):
                dist.all_reduce(parameter.grad)
        if kind == "healthy" and step % 7 == 3:
            continue  # as if a gradient scaler found an overflow, on all ranks
        optimizer.step()
    if kind == "branch":
        if rank == 2:
            time.sleep(8)
            os._exit(0)
        dist.all_reduce(torch.ones(8, 8))


told() if kind == "told" else untold()
dist.destroy_process_group()
