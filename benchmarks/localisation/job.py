"""Code that this benchmark's programs share: they join as the environment says, and mark the moment of their fault.

torchrun runs a program, which knows of no tool. If PyTorch writes no file, a thread writes its recorder's content when
the benchmark asks for it, as a job's own signal handler would.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

BACKEND = os.environ["LOCALISATION_BACKEND"]
FOLDER = Path(os.environ["LOCALISATION_FOLDER"])
TIMEOUT = timedelta(seconds=float(os.environ["LOCALISATION_TIMEOUT"]))
"""PyTorch's timeout of a call, once the job has begun."""
BEGIN = timedelta(seconds=float(os.environ.get("LOCALISATION_BEGIN", "300")))
"""The timeout before that: a busy machine takes long to start a job."""
WRITES_FILES = BACKEND != "nccl2" and os.environ.get("LOCALISATION_FILES") != "0"
"""True if there is a recorder with records, and a tool that reads its files."""
FLOATS = 1 << 14
PAUSE = 0.02
"""Seconds of a step."""
_ASK_SECONDS = 0.2
SERVE_SECONDS = 5.0
"""Seconds between two writes of the debug server. By default it writes once a minute."""

_own: Any = dist
_recorder: Any = torch._C._distributed_c10d


def _join() -> torch.device:
    dist.set_debug_level_from_env()  # torch reads it at its import, which may have been before the environment was set
    if BACKEND == "gloo":
        dist.init_process_group("gloo", timeout=BEGIN)
        return torch.device("cpu")
    found = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(found)
    dist.init_process_group(BACKEND, timeout=BEGIN, device_id=found if BACKEND == "nccl2" else None)
    return found


device = _join()
rank, world = dist.get_rank(), dist.get_world_size()
data = torch.ones(FLOATS, device=device)


def wait() -> float:
    """Wait for the device, and return a value from it."""
    return float(data[0].item())


def step() -> None:
    """Make one step of training: reduce gradients, and read the loss on the host."""
    dist.all_reduce(data)
    wait()
    time.sleep(PAUSE)


def new_group(ranks: Sequence[int]) -> Any:
    """Return a process group that has been used once, so that its communicator exists."""
    group = dist.new_group(list(ranks), timeout=BEGIN)
    if rank in ranks:
        dist.all_reduce(data, group=group)
        wait()
        _limit(group)
    return group


def fault() -> None:
    """Note that the fault begins now, in this rank."""
    _mark("fault", str(time.time()))


def device_fault(text: str) -> None:
    """Give the simulated device a fault (tests/simulated_device/README.md). It checks for faults every 20 ms."""
    control = Path(os.environ["SIMDEV_CONTROL"])
    part = control.with_suffix(".part")
    part.write_text(text + "\n")
    fault()
    part.rename(control)
    time.sleep(0.2)


def lose_host() -> None:
    """Stop all processes of this rank at once and for good, whoever started them."""
    mine = (f"LOCALISATION_FOLDER={FOLDER}".encode(), f"RANK={rank}".encode())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if set(mine) <= set((entry / "environ").read_bytes().split(b"\0")):
                    os.kill(int(entry.name), signal.SIGSTOP)
    fault()
    os.kill(os.getpid(), signal.SIGSTOP)


def end() -> None:
    """End the program, if it comes so far."""
    dist.destroy_process_group()


def _limit(group: Any) -> None:
    # The name since torch 2.14, and the name before.
    (getattr(_own, "set_timeout", None) or _own.distributed_c10d._set_pg_timeout)(TIMEOUT, group)


def _mark(name: str, text: str) -> None:
    part = FOLDER / f"part_{name}_{rank}"
    part.write_text(text)
    part.rename(FOLDER / f"{name}_{rank}")


def _recorded() -> bytes:
    made: bytes = _recorder._dump_nccl_trace() if BACKEND == "nccl" else _recorder._dump_fr_trace()
    return made


def _write_when_asked() -> None:
    while not (FOLDER / "ask").exists():
        time.sleep(_ASK_SECONDS)
    made = _recorded()
    part = FOLDER / f"part_trace_{rank}"
    part.write_bytes(made)
    part.rename(FOLDER / "torch" / f"trace_{rank}")


def _serve() -> None:
    """Start PyTorch's debug server, which writes its tables every few seconds."""
    from torch.distributed.debug import start_debug_server

    shown = {"dump_dir": str(FOLDER / "debug"), "dump_interval": SERVE_SECONDS, "enabled_dumps": {"fr_trace"}}
    start_debug_server(0, start_method="fork", **shown)
    for process in multiprocessing.active_children():
        _mark("server", str(process.pid))  # the server outlives its rank


dist.all_reduce(data)
wait()
_limit(dist.group.WORLD)
if os.environ.get("LOCALISATION_DEBUG_SERVER"):
    _serve()
if WRITES_FILES:
    _recorded()  # the first dump reads symbols from files, which takes seconds: do it before the fault
_mark("started", str(os.getpid()))
if WRITES_FILES:
    threading.Thread(target=_write_when_asked, daemon=True).start()
