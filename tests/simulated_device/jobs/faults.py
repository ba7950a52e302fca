"""Two ranks switch each fault on and off with the control file (SIMDEV_CONTROL). Exit status 0: all was right."""

import datetime
import faulthandler
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

REREAD = 0.05
"""Seconds within which each process reads the control file again."""
faulthandler.dump_traceback_later(80, exit=True)  # before the test gives up, so that a hang shows its line
rank = int(os.environ["RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=300), device_id=device)
store = dist.distributed_c10d._get_default_store()
control = Path(os.environ["SIMDEV_CONTROL"])
steps = 0
kernels = 0
"""NCCL kernels of this process: `after=` counts them."""


def meet() -> None:
    """Let the ranks wait for each other on their hosts. This does not use the devices."""
    global steps
    steps += 1
    store.add(f"step {steps}", 1)
    while store.add(f"step {steps}", 0) < 2:
        time.sleep(0.005)


@contextmanager
def faults(*lines: str) -> Iterator[None]:
    """These faults act while the block runs."""
    for text in ("".join(f"{line}\n" for line in lines), ""):
        meet()
        if rank == 0:
            part = control.with_suffix(".part")
            part.write_text(text)
            part.rename(control)
        meet()
        time.sleep(REREAD)
        if text:
            yield


def call(group: dist.ProcessGroup | None = None) -> dist.Work:
    global kernels
    kernels += 1
    return dist.all_reduce(torch.ones(4, device=device), group=group, async_op=True)


def until(look: Callable[[], bool]) -> None:
    while not look():
        time.sleep(0.005)


def shortest(calls: int = 4) -> float:
    """Milliseconds of the shortest call on the device: a busy machine can make any call longer."""
    works = []
    for _ in range(calls):
        works.append(call())
        works[-1].wait()
        torch.cuda.synchronize()
    until(lambda: all(work.is_completed() for work in works))
    return min(float(work._get_duration()) for work in works)


other = dist.new_group([0, 1])
for group in (None, other):
    call(group).wait()
torch.cuda.synchronize()

# late: the others wait on the device, and the late rank does not.
with faults("late rank=1 ms=200"):
    store.set(f"late {rank}", str(shortest()))
    meet()
    waiting, late = (float(store.get(f"late {one}")) for one in (0, 1))
    assert waiting - late >= 150, (waiting, late)

# endless: one kernel does not end on one rank. Only the work behind it in the stream waits.
with faults(f"endless rank=1 after={kernels}"):
    struck = call()
    struck.wait()
    behind = torch.cuda.Event()
    behind.record()
    if rank == 0:
        until(struck.is_completed)  # so the kernel has begun on rank 1: it is the one that the fault strikes
        until(behind.query)
    meet()
    with torch.cuda.stream(torch.cuda.Stream()):
        elsewhere = call(other)
        elsewhere.wait()
        done = torch.cuda.Event()
        done.record()
    done.synchronize()
    meet()
    if rank == 1:
        assert not struck.is_completed()
        assert not behind.query()
behind.synchronize()
until(struck.is_completed)

# stuck: the device executes nothing more; the others wait for it.
with faults(f"stuck rank=1 after={kernels}"):
    stuck = call()
    stuck.wait()
    behind = torch.cuda.Event()
    behind.record()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.zeros(4, device=device)
        elsewhere = torch.cuda.Event()
        elsewhere.record()
    if rank == 0:
        elsewhere.synchronize()
    meet()
    assert not behind.query()
    assert elsewhere.query() == (rank == 0)
torch.cuda.synchronize()

# An abort ends an endless kernel, and what waits behind it.
with faults(f"endless after={kernels}"):
    struck = call()
    struck.wait()
    behind = call()
    behind.wait()
    assert not struck.is_completed()
    dist.distributed_c10d._abort_process_group()
    torch.cuda.synchronize()

os._exit(0)
