"""Training with an optimizer on gloo: rank 2 takes longer in each step, or none does.

Arguments: ``slow`` or ``healthy``; a file. The job ends once the file exists, or after some minutes.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SECONDS = 120.0
STEP = 0.08
DELAY = 0.15
SLOW = 2


def main() -> None:
    mode, stop = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    draw = random.Random(rank)
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(8, 256)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(STEP * draw.uniform(0.8, 1.2) + (0.2 if draw.random() < 0.02 else 0.0))
        if mode == "slow" and rank == SLOW:
            time.sleep(DELAY)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        done = torch.tensor([float(stop.exists())])
        dist.all_reduce(done, op=dist.ReduceOp.MAX)
        if done.item():
            break
    # torch may hang if the model outlives its group: the destructor joins gloo's thread, which may need the GIL.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
