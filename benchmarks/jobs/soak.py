"""Trains for a while: argv[1] is the kind, argv[2] the seconds. Four ranks.

fsdp2: with FSDP2, while a second thread makes collectives. noisy: with DDP, on ranks that are all late sometimes, and
equally often. After the first tenth of the time each rank prints its memory ten times, and at the end the counts of its
records.
"""

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from otel_fr.capture import hook
from otel_fr.ring import RingReader

SHARES = 10
LOADING = 0.04
"""Mean seconds that a noisy rank sleeps before each step; CPU work takes a quarter of this. Both are exponentially
distributed, so that in most steps some rank is later than --straggler-seconds."""
LONG_LOAD, LONG_SECONDS = 0.02, (0.2, 0.8)
"""Share of the steps in which a noisy rank takes longer, and the seconds."""
CHECKPOINT_STEPS, CHECKPOINT_SECONDS = 40, 0.5
"""Steps between two checkpoints, and the seconds of each. Only rank 0 writes them."""

kind, seconds = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
counts = {"steps": 0, "issued by the second thread": 0}


def tell(line: str) -> None:
    """Print a line in one write, because the ranks share their output."""
    os.write(1, f"{line}\n".encode())


def resident_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def train(model: torch.nn.Module, batch: torch.Tensor, load: Callable[[], None] = lambda: None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    begun, share, goes_on = time.monotonic(), 0, torch.ones(1)
    while goes_on.item():
        load()
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


def fsdp2() -> None:
    own = dist.new_group(list(range(size)), group_desc="second thread")
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    mesh = init_device_mesh("cpu", (size,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    is_over = torch.zeros(1)

    def issue() -> None:
        """Make equal calls on all ranks until rank 0 says that the job is over. Some have a new shape."""
        choose, stop = random.Random(1), torch.zeros(1)
        while not stop.item():
            sizes = [*(choose.choice((8, 64, 1024)) for _ in range(20)), choose.randrange(1, 200_000)]
            for work in [dist.all_reduce(torch.ones(one), group=own, async_op=True) for one in sizes]:
                work.wait()
            stop.copy_(is_over)
            dist.broadcast(stop, 0, group=own)
            counts["issued by the second thread"] += len(sizes) + 1

    second = threading.Thread(target=issue)
    second.start()
    train(model, torch.randn(16, 64))
    is_over.fill_(1)
    second.join()


def noisy() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
    choose = random.Random(rank)

    def load() -> None:
        if rank == 0 and counts["steps"] % CHECKPOINT_STEPS == CHECKPOINT_STEPS - 1:
            time.sleep(CHECKPOINT_SECONDS)
        time.sleep(choose.expovariate(1 / LOADING))
        if choose.random() < LONG_LOAD:
            time.sleep(choose.uniform(*LONG_SECONDS))
        end = time.thread_time() + choose.expovariate(4 / LOADING)
        while time.thread_time() < end:
            pass

    train(DistributedDataParallel(layers, bucket_cap_mb=0.5), torch.randn(16, 256), load)


{"fsdp2": fsdp2, "noisy": noisy}[kind]()
session = hook._state.session
if session is None:
    tell(f"DONE {rank} off {counts}")
else:
    with contextlib.closing(RingReader.open(session._writer.path)) as ring:
        tell(f"DONE {rank} {session.engine.name} {counts | {'recorded': ring.head} | ring.counters}")
dist.destroy_process_group()
