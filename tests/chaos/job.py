"""Trains a little, as a user's program does, with one fault: ``job.py FOLDER FAULT VICTIM STEP STEPS HELD``.

Each rank writes its exact results to ``FOLDER/result-RANK``, so that jobs can be compared. ``STEP``: the victim does
the fault before this step; -1: before the process group exists. Another program does the faults from outside; all ranks
wait for it before their last step, until ``FOLDER/struck`` exists. The victim writes ``FOLDER/failed`` just before it
does a fault itself. ``HELD``: seconds for which a slow rank does nothing.

``job.py FOLDER again SEED``: a job that is restarted. In each attempt the rank that the seed chooses fails. The job
ends cleanly once ``FOLDER/enough`` exists.
"""

import ctypes
import datetime
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch._dynamo  # DDP would import it between two collectives, which makes a rank seconds late on a busy machine
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FOLDER, FAULT = sys.argv[1:3]
NUMBERS = [*map(int, sys.argv[3:]), 0, 0, 0]
VICTIM, STEP, STEPS, HELD_SECONDS = NUMBERS[:4]
PAUSE = 0.1
LIMITS = {"never": 8.0}
"""Fault -> timeout of the groups in seconds, for faults that only the timeout ends."""
RANK = int(os.environ["RANK"])


def note(name: str, text: str = "") -> None:
    path = os.path.join(FOLDER, name)
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)


def wait_for(name: str) -> None:
    while not os.path.exists(os.path.join(FOLDER, name)):
        time.sleep(0.02)


def let_go(tensor: torch.Tensor) -> None:
    """Wait until no thread of gloo holds the job's last tensor.

    A group joins its threads with the GIL held, and a thread needs the GIL to drop a Python tensor. Without this wait,
    ranks of torch 2.13 sometimes hang at their end, with or without otel-fr.
    """
    while tensor._use_count() > 1:
        time.sleep(0.02)


def fork() -> None:
    """Fork a child that lives as long as the job, and a child that ends at once."""
    if os.fork() == 0:
        os._exit(0)
    if os.fork() == 0:
        wait_for(f"result-{RANK}")
        os._exit(9)


def few_files() -> None:
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 24, used + 24))


FAULTS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "segfault": lambda: ctypes.string_at(8),
    "abort": os.abort,
    "exit": lambda: os._exit(7),
    "exec": lambda: os.execv(sys.executable, [sys.executable, "-c", "raise SystemExit(5)"]),
    "close": lambda: os.closerange(3, 4096),
    "never": lambda: time.sleep(60),
    "gil": lambda: ctypes.PyDLL(None).sleep(HELD_SECONDS),  # called without releasing the GIL
    "sleep": lambda: time.sleep(HELD_SECONDS),
    "fork": fork,
    "spawn": lambda: subprocess.run(["true"], check=True),
    "files": few_files,
    "processes": lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)),
}


def fail(step: int) -> None:
    if RANK != VICTIM or step != STEP:
        return
    note("failed")
    if FAULT == "raise":
        raise ValueError("bad sample 4711")
    FAULTS.get(FAULT.removesuffix(" full").removesuffix(" clock"), lambda: None)()


def train(group_seconds: float) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    fail(-1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=group_seconds))
    world = dist.get_world_size()
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    note(f"ready-{RANK}", str(os.getpid()))
    for step in range(STEPS):
        if step == STEPS - 1:
            wait_for("struck")  # all ranks wait here, so none waits for another rank
        fail(step)
        time.sleep(PAUSE)
        batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * world + RANK))
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
        losses.append(total.item())
    let_go(total)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    del model, optimizer  # see tests/acceptance/jobs/straggler.py
    dist.destroy_process_group()
    note(f"result-{RANK}", (struct.pack(f"<{len(losses)}d", *losses) + flat.numpy().tobytes()).hex())


def fail_again(seed: int) -> None:
    """Run one attempt. The fault is noted before it happens: the test expects a verdict only for noted faults."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    chance = random.Random(f"{seed} {attempt}")
    dist.init_process_group("gloo")
    victim, step, how = chance.randrange(dist.get_world_size()), chance.randrange(2, 40), chance.choice("kr")
    is_over = os.path.exists(os.path.join(FOLDER, "enough"))
    ends = [is_over] * dist.get_world_size()
    dist.broadcast_object_list(ends)
    for now in range(41):
        if now == step and victim == RANK and not ends[0]:
            note(f"fault-{attempt}", str(victim))
            if how == "r":
                raise ValueError("bad sample 4711")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PAUSE)
        last = torch.ones(4)
        dist.all_reduce(last)
    let_go(last)
    dist.destroy_process_group()


if FAULT == "again":
    fail_again(VICTIM)
else:
    train(LIMITS.get(FAULT, 40.0))
