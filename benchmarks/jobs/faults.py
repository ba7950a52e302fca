"""The job of benchmarks/faults.py: `faults.py KIND VICTIM STEP`. Ranks print events, one JSON object a line."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import otel_fr

KIND, VICTIM, STEP = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STEPS = 20
AFTER = 5.0
"""Seconds from a rank's release to its end. Its launcher then ends its neighbours, which must be freed before."""
PAUSE = 0.15
"""Seconds between two steps. The job must last longer than the cut of the network."""


def say(event: str, **values: object) -> None:
    line = json.dumps({"rank": rank, "event": event, "at": time.time(), "pid": os.getpid(), **values})
    sys.stdout.write(f"FAULTS {line}\n")
    sys.stdout.flush()


def fail() -> None:
    say("fault")
    if KIND == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif KIND in ("stop", "stop unseen"):
        os.kill(os.getpid(), signal.SIGSTOP)
    elif KIND == "raise":
        raise ValueError("bad sample 4711")
    elif KIND in ("sleep", "sleep unheard"):
        time.sleep(3 * float(os.environ["OTEL_FR_STALL_SECONDS"]))
    elif KIND == "gil":
        ctypes.PyDLL(None).sleep(600)  # called without releasing the GIL
    elif KIND == "section":
        with otel_fr.section("load_shard", timeout=1.0):
            time.sleep(600)


dist.init_process_group("gloo")
rank = dist.get_rank()
otel_fr.on_peer_failure(lambda failure: say("told", ranks=list(failure.ranks), kind=failure.kind))
model = DistributedDataParallel(torch.nn.Linear(64, 64))
say("ready")
try:
    for step in range(STEPS):
        if rank == VICTIM and step == STEP:
            fail()
        time.sleep(PAUSE)
        model(torch.ones(4, 64)).sum().backward()
except RuntimeError as error:
    say("freed", error=type(error).__name__)
    time.sleep(AFTER)
    os._exit(1)
del model  # see tests/acceptance/jobs/straggler.py
dist.destroy_process_group()
say("finished")
