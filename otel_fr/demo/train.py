"""A small data-parallel training job, as people write them. It does not use otel-fr.

The defect: at step 3 the shard server of rank 2 stops answering, so rank 2 does not join the all_reduce of that step.
"""

import os
import time

import torch
import torch.distributed as dist

STEPS = 6
DEAD_SHARD = (2, 3)


def fetch_shard(rank: int, step: int) -> torch.Tensor:
    while (rank, step) == DEAD_SHARD:
        time.sleep(0.1)  # "the server will come back"
    return torch.full((16, 8), float(rank + step))


def average_gradients(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        batch = fetch_shard(rank, step)
        loss = model(batch).pow(2).mean()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} of {STEPS}: loss {loss.item():.4f} (pid {os.getpid()})", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
