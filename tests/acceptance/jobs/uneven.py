"""A training on uneven data. argv[1]: how; argv[2]: a folder. Rank 2 comes to its evaluation before its peers, and
evaluates until a file `go` exists.

early: it has one batch less. skips: one of its batches is bad, so it leaves out the average of the loss.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

kind = sys.argv[1]
dist.init_process_group(
    "gloo",
    init_method=f"file://{sys.argv[2]}/store",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
rank = dist.get_rank()


def average(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def evaluate() -> None:
    if rank == 2:
        end = time.monotonic() + 60
        while not os.path.exists(f"{sys.argv[2]}/go") and time.monotonic() < end:
            time.sleep(0.1)
        os._exit(0)


def main() -> None:
    model = torch.nn.Linear(8, 1, bias=False)
    batches = 12 - (kind == "early" and rank == 2)
    for batch in range(batches):
        model.zero_grad()
        loss = model(torch.full((1, 8), float(batch)))
        loss.backward()
        is_bad = kind == "skips" and rank == 2 and batch == 4
        if not is_bad:
            dist.all_reduce(loss.detach().repeat(1, 8))
        average(model)
    evaluate()
    dist.all_reduce(torch.zeros(1))


main()
dist.destroy_process_group()
