"""A job in which rank 1 fails in step 3. Survivors print how their wait ended, with its seconds. argv[1] says how:

comes_back: it is stopped for a while. Two callbacks are bad, and rank 2 runs code of its own meanwhile. stopped: it is
only stopped. unheard: its monitor is stopped, too, and hooks of the backward pass make the calls. ddp: it is killed in
a job with DDP. killed: it is killed; the only other rank is rank 0, under another torchrun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import otel_fr
from otel_fr.capture import hook
from otel_fr.ring import RingReader

KIND = sys.argv[1]
STEP = 3
VICTIM = 1
was_told = threading.Event()


def say(text: str) -> None:
    print(f"[{rank}] {text}", flush=True)


def told(failure: otel_fr.PeerFailure) -> None:
    here = threading.current_thread().name
    say(f"told of {list(failure.ranks)} {failure.kind} in {list(failure.process_groups)} on {here}: {failure.reason}")
    was_told.set()


def fail() -> None:
    if KIND == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif KIND == "unheard":
        continued: list[int] = []
        signal.signal(signal.SIGCONT, lambda number, _: continued.append(number))
        say("may be stopped")
        while not continued:
            time.sleep(0.01)
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


def monitor_pid() -> int:
    """Return the process id of this rank's monitor, once it watches."""
    session = hook._state.session
    assert session is not None
    with contextlib.closing(RingReader.open(session._writer.path)) as ring:
        while not ring.monitor_pid:
            time.sleep(0.01)
        return ring.monitor_pid


dist.init_process_group("gloo")
rank = dist.get_rank()
otel_fr.on_peer_failure(told)
if KIND == "comes_back":
    otel_fr.on_peer_failure(lambda failure: time.sleep(3600))
    otel_fr.on_peer_failure(lambda failure: 1 // 0)
pair = dist.new_group([0] if KIND == "killed" else [0, 2])
say(f"pid {os.getpid()}")
if KIND == "unheard":
    say(f"monitor {monitor_pid()}")
    model = torch.nn.Linear(64, 64)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad))
if KIND == "ddp":
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
for step in range(6):
    begun = time.monotonic()
    if rank == VICTIM and step == STEP:
        fail()
        begun = time.monotonic()
    if KIND == "comes_back" and rank == 2 and step == STEP:
        was_told.wait()
        time.sleep(float(os.environ["OTEL_FR_STALL_SECONDS"]))
        say("user code went on to its end")
        begun = time.monotonic()
    try:
        if KIND in ("ddp", "unheard"):
            model(torch.ones(4, 64)).sum().backward()
        else:
            dist.all_reduce(torch.ones(8))
    except RuntimeError as error:
        context = error.__cause__ or error.__context__
        say(f"step {step} ended after {time.monotonic() - begun:.1f} s: {type(error).__name__}: {error}")
        say(f"context {type(context).__name__}")
        if KIND == "ddp":
            raise
        if KIND == "killed":
            was_told.wait()
        elif rank != VICTIM:
            value = torch.ones(1)
            dist.all_reduce(value, group=pair)
            say(f"the other group gives {value.item()}")
        os._exit(1 if KIND == "killed" else 0)  # with 0, torchrun would wait for the other node
    say(f"step {step} done")
model = None  # see straggler.py
dist.destroy_process_group()
say("finished")
