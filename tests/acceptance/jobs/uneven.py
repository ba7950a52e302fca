"""A training loop with a batch fewer on rank 2 than on its peers. argv[1]: a folder. Rank 2 goes on to evaluate."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group(
    "gloo",
    init_method=f"file://{sys.argv[1]}/store",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
rank = dist.get_rank()


def average(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def evaluate() -> None:
    if rank == 2:
        time.sleep(5)
        os._exit(0)


def main() -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in range(12 - (rank == 2)):
        optimizer.zero_grad()
        model(torch.full((4, 8), float(batch))).sum().backward()
        average(model)
        optimizer.step()
    evaluate()
    dist.all_reduce(torch.zeros(1))


main()
dist.destroy_process_group()
