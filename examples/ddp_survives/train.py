"""Data-parallel training that continues without a rank that hangs. Run it by compare.py, or:

    OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 OTEL_FR_ON_PEER_FAILURE=abort \\
        torchrun --standalone --nproc-per-node=3 examples/ddp_survives/train.py

Takes torch 2.14 or later. Gradients are averaged by hand: a DistributedDataParallel would need rebuilding for
the new group.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist

import otel_fr

VICTIM = 1


def average_gradients(model: torch.nn.Module, size: int) -> None:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, averaged in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(averaged.view_as(gradient) / size)


def synchronise(model: torch.nn.Module, step: int, size: int) -> int:
    """Take the state of the rank that is furthest: the collective that failed may have ended well on some ranks."""
    steps = torch.zeros(size, dtype=torch.int64)
    steps[dist.get_rank()] = step
    dist.all_reduce(steps)
    source = int(steps.argmax())
    for parameter in model.parameters():
        dist.broadcast(parameter.data, source)
    return int(steps.max())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--hang-at", type=int, default=3, help="step at which rank 1 stops; -1: never")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
    options = parser.parse_args()

    dist.init_process_group("gloo", enable_reconfigure=True)
    rank, size = otel_fr.reconfigure()
    is_victim = rank == VICTIM
    torch.manual_seed(7)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # without momentum, the parameters are all of the state
    data = torch.Generator().manual_seed(rank)
    step = 0
    while step < options.steps:
        if is_victim and step == options.hang_at:
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            optimizer.zero_grad()
            model(torch.randn(32, 256, generator=data)).square().mean().backward()
            average_gradients(model, size)
            optimizer.step()
            step += 1
        except RuntimeError as error:
            print(f"{time.time():.2f} rank {rank}: step {step} failed: {str(error).splitlines()[0][:160]}", flush=True)
            try:
                rank, size = otel_fr.reconfigure()
            except otel_fr.ReconfigureError as refused:  # this rank hung, and came back
                print(f"{time.time():.2f} rank {rank} leaves: {refused}", flush=True)
                return  # with status 0: after another one, torchrun would end the ranks that went on
            step = synchronise(model, step, size)
            continue
        if rank == 0:
            print(f"{time.time():.2f} step {step} done by {size} ranks", flush=True)
        time.sleep(options.pause)
    checksum = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
    print(f"{time.time():.2f} rank {rank} of {size} finished, checksum {checksum:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
