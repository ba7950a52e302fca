"""Trains with DDP for a while on ranks that are all late now and then, none more often than another. argv: seconds.

Each rank prints as soak.py does.
"""

import contextlib
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from otel_fr.capture import hook
from otel_fr.ring import RingReader

SHARES = 10
LOADING = 0.04
"""Mean seconds that a rank sleeps before each step, and CPU work of a quarter of it: exponentially distributed, so that
in most steps some rank is later than --straggler-seconds."""
LONG_LOAD, LONG_SECONDS = 0.02, (0.2, 0.8)
"""How often a rank takes so much longer."""
CHECKPOINT_STEPS, CHECKPOINT_SECONDS = 40, 0.5
"""Rank 0 alone writes one."""

seconds = float(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6))), bucket_cap_mb=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
choose = random.Random(rank)


def tell(line: str) -> None:
    """In one write, for the ranks share their output."""
    os.write(1, f"{line}\n".encode())


def resident_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def load() -> None:
    time.sleep(choose.expovariate(1 / LOADING))
    if choose.random() < LONG_LOAD:
        time.sleep(choose.uniform(*LONG_SECONDS))
    end = time.thread_time() + choose.expovariate(4 / LOADING)
    while time.thread_time() < end:
        pass


begun = time.monotonic()
batch, share, steps = torch.randn(16, 256), 0, 0
goes_on = torch.ones(1)
while goes_on.item():
    load()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
    if rank == 0 and steps % CHECKPOINT_STEPS == 0:
        time.sleep(CHECKPOINT_SECONDS)
    passed = time.monotonic() - begun
    if passed >= seconds * (share + 1) / (SHARES + 1):
        share += 1
        tell(f"SOAK {rank} {passed:.0f} {resident_kib()}")
    goes_on.fill_(passed < seconds)
    dist.broadcast(goes_on, 0)
session = hook._state.session
if session is None:
    tell(f"DONE {rank} off {steps} steps")
else:
    with contextlib.closing(RingReader.open(session._writer.path)) as ring:
        tell(f"DONE {rank} {session.engine.name} {steps} steps, {ring.head} calls, {ring.counters}")
dist.destroy_process_group()
