"""DDP-style training on gloo, of some minutes at most: one rank is slow in each step, or none is.

Arguments: ``slow`` or ``healthy``; milliseconds of a step; the file whose existence ends the job.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = 90.0
DELAY = 0.15
BUCKETS = 2


def compute(seconds: float, draw: random.Random) -> None:
    """Forward and backward pass: of no two ranks of the same length, and now and then much longer."""
    time.sleep(seconds * draw.uniform(0.8, 1.2) + (0.2 if draw.random() < 0.02 else 0.0))


def main() -> None:
    mode, step, stop = sys.argv[1], float(sys.argv[2]) / 1_000, Path(sys.argv[3])
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    draw = random.Random(rank)
    gradients = [torch.ones(50_000) for _ in range(BUCKETS)]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        compute(step, draw)
        if mode == "slow" and rank == 1:
            time.sleep(DELAY)
        works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
        for work in works:
            if work is not None:
                work.wait()
        done = torch.tensor([float(stop.exists())])
        dist.all_reduce(done, op=dist.ReduceOp.MAX)
        if done.item():
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
