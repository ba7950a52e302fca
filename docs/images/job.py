"""The job of the pictures: 4 ranks, in two pairs. Rank 2 waits for its shard: ``hung`` at step 12, ``slow`` always."""

import datetime
import sys
import time

import torch
import torch.distributed as dist

HOW = sys.argv[1]
TIMEOUT = datetime.timedelta(seconds=25)


def load_shard(rank: int, step: int) -> torch.Tensor:
    while HOW == "hung" and (rank, step) == (2, 12):
        time.sleep(0.1)
    if HOW == "slow" and rank == 2:
        time.sleep(0.3)
    return torch.full((64, 8), float(rank))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank = dist.get_rank()
    pairs = [dist.new_group([first, first + 1], timeout=TIMEOUT, group_desc="tensor_parallel") for first in (0, 2)]
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100_000):
        batch = load_shard(rank, step)
        hidden = model(batch)
        dist.all_reduce(hidden.detach(), group=pairs[rank // 2])
        hidden.pow(2).mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
