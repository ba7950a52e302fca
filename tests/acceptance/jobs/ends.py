"""One way in which ranks end, named by argv[1]. Knows nothing of otel-fr. Ends on its own within about 15 s."""

import atexit
import datetime
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

PATIENCE = 4.0
"""Seconds after which a watchdog, or gloo's timeout, ends a rank: longer than the tests' stall time."""

how = sys.argv[1]
timeout = 60.0 if how == "watchdog" else PATIENCE
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
rank = dist.get_rank()
data = torch.ones(64)


def idle() -> None:
    time.sleep(60)  # stands for a dead file server


def watchdog() -> None:
    time.sleep(PATIENCE)
    os.abort()  # as NCCL's watchdog does when a collective has timed out


dist.all_reduce(data)  # number 1
if how == "watchdog":
    if rank == 1:
        idle()
    threading.Thread(target=watchdog, daemon=True).start()
elif rank == 1 and how == "exit_message":
    sys.exit("no samples left on this rank")
elif rank == 1 and how == "raised_and_exiting":
    atexit.register(idle)
    raise ValueError("bad sample 4711")
dist.all_reduce(data)
