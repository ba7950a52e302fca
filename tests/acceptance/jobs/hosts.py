"""Trains on any number of hosts until the file ``stop`` exists in the folder argv[1]. Files there cause faults:

``hang-R``: rank R loads until the file ``go`` exists. ``raise-R``: it raises, once. ``SIGKILL-R``, ``SIGSTOP-R``: it
sends itself this signal.

Each rank writes its step, the number of ranks, its host and the attempt to ``steps-R``. The variable ``FLOATS`` is the
number of floats that a step reduces.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
host, attempt = socket.gethostname(), os.environ["TORCHELASTIC_RESTART_COUNT"]


def load_shard() -> None:
    while not (folder / "go").exists():  # stands for a dead file server
        time.sleep(0.1)


step = 0
over = torch.zeros(int(os.environ.get("FLOATS", "1")))
while not over[0].item():
    if (folder / f"hang-{rank}").exists():
        load_shard()
    if (folder / f"raise-{rank}").exists():
        (folder / f"raise-{rank}").unlink()
        raise ValueError("bad sample 4711")
    for name in ("SIGKILL", "SIGSTOP"):
        if (folder / f"{name}-{rank}").exists():
            signal.raise_signal(getattr(signal, name))
    over.fill_(float((folder / "stop").exists()))
    dist.all_reduce(over)
    step += 1
    (folder / f"steps-{rank}").write_text(f"{step} {world} {host} {attempt}")
    time.sleep(0.05)
dist.destroy_process_group()
