"""Trains with FSDP2 and issues collectives on a second thread, for a while. argv: seconds.

Each rank prints a line of its memory ten times after the first tenth of the time, and at the end what it recorded.
"""

import contextlib
import os
import random
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from otel_fr.capture import hook
from otel_fr.ring import RingReader

SHARES = 10

seconds = float(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
own = dist.new_group(list(range(size)), group_desc="second thread")
layers = [torch.nn.Linear(64, 64) for _ in range(4)]
model = torch.nn.Sequential(*layers)
mesh = init_device_mesh("cpu", (size,))
for layer in layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
counts = {"steps": 0, "issued by the second thread": 0}
is_over = torch.zeros(1)


def tell(line: str) -> None:
    """In one write, for the ranks share their output."""
    os.write(1, f"{line}\n".encode())


def resident_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def issue() -> None:
    """Equal calls on all ranks until rank 0 says that it is over, now and then of a shape that was never used."""
    choose = random.Random(1)
    stop = torch.zeros(1)
    while not stop.item():
        works = [dist.all_reduce(torch.ones(choose.choice((8, 64, 1024))), group=own, async_op=True) for _ in range(20)]
        works.append(dist.all_reduce(torch.ones(choose.randrange(1, 200_000)), group=own, async_op=True))
        for work in works:
            work.wait()
        stop.copy_(is_over)
        dist.broadcast(stop, 0, group=own)
        counts["issued by the second thread"] += len(works) + 1


begun = time.monotonic()
second = threading.Thread(target=issue)
second.start()
batch, share = torch.randn(16, 64), 0
goes_on = torch.ones(1)
while goes_on.item():
    model(batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    counts["steps"] += 1
    passed = time.monotonic() - begun
    if passed >= seconds * (share + 1) / (SHARES + 1):
        share += 1
        tell(f"SOAK {rank} {passed:.0f} {resident_kib()}")
    goes_on.fill_(passed < seconds)
    dist.broadcast(goes_on, 0)
is_over.fill_(1)
second.join()
session = hook._state.session
if session is None:
    tell(f"DONE {rank} off {counts}")
else:
    with contextlib.closing(RingReader.open(session._writer.path)) as ring:
        tell(f"DONE {rank} {session.engine.name} {counts | {'recorded': ring.head} | ring.counters}")
dist.destroy_process_group()
