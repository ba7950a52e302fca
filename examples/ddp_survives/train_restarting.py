"""The training of train.py without otel-fr: a timeout ends the others, and torchrun restarts all. See compare.py.

torchrun --standalone --nproc-per-node=3 --max-restarts=1 examples/ddp_survives/train_restarting.py --state FILE
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

VICTIM = 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--hang-at", type=int, default=3, help="step at which rank 1 stops in the first start")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds, of collectives; torch's default is 1800")
    parser.add_argument("--state", type=Path, required=True, help="checkpoint, written after each step")
    options = parser.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    rank, size = dist.get_rank(), dist.get_world_size()
    is_first_start = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    torch.manual_seed(7)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(rank)
    step = 0
    if options.state.exists():
        saved = torch.load(options.state)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    while step < options.steps:
        if rank == VICTIM and step == options.hang_at and is_first_start:
            os.kill(os.getpid(), signal.SIGSTOP)
        optimizer.zero_grad()
        model(torch.randn(32, 256, generator=data)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= size
        optimizer.step()
        step += 1
        if rank == 0:
            torch.save({"model": model.state_dict(), "step": step}, options.state)
            print(f"{time.time():.2f} step {step} done by {size} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
