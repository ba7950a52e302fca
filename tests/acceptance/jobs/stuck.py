"""A job in which rank 1 does not join a collective. argv[1]: why. The job ends once argv[2]/end exists."""

import datetime
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

fault, folder = sys.argv[1], Path(sys.argv[2])
if fault == "memory" and os.environ["RANK"] == "1":
    Path(sys.argv[3], "cgroup.procs").write_text(str(os.getpid()))
dist.init_process_group(
    "gloo",
    init_method=f"file://{folder}/store",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=datetime.timedelta(seconds=60),
)
rank = dist.get_rank()
data = torch.ones(64)


def fifo() -> None:
    os.mkfifo(folder / "samples")
    with open(os.open(folder / "samples", os.O_RDWR), "rb") as file:
        file.read(1)


def memory() -> None:
    group = Path(sys.argv[3])
    for pid in (group / "cgroup.procs").read_text().split():
        if int(pid) != os.getpid():  # the monitor: the kernel could kill it, too
            (group.parent / "cgroup.procs").write_text(pid)
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))


def starved() -> None:
    """Another program takes this process's only processor, until somebody ends that program."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"], env={})
    for pid in (0, other.pid):
        os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
    (folder / "other.new").write_text(str(other.pid))
    os.rename(folder / "other.new", folder / "other")
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    begun = time.thread_time()
    while time.thread_time() - begun < 0.2:
        pass


@record  # type: ignore[untyped-decorator]
def load() -> None:
    raise ValueError("bad sample 4711")


def hidden() -> None:
    try:
        load()
    except ValueError:
        os._exit(3)


def end() -> None:
    while not (folder / "end").exists():
        time.sleep(0.05)
    if fault == "fifo":
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
    os._exit(0)


FAULTS = {"fifo": fifo, "memory": memory, "starved": starved, "hidden": hidden}
if rank == 1:
    (folder / "pid").write_text(str(os.getpid()))
for step in range(3):
    if rank == 1 and step == 2:
        FAULTS[fault]()
    if rank == 0 and step == 2:
        threading.Thread(target=end, daemon=True).start()
    dist.all_reduce(data)
