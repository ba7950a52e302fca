"""One way in which ranks end, named by argv[1]. Knows nothing of otel-fr. Ends on its own within about 15 s."""

import atexit
import datetime
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

PATIENCE = 4.0
"""Seconds after which a watchdog, or gloo's timeout, ends a rank: longer than the tests' stall time."""

how = sys.argv[1]
by_watchdog = {"watchdog_of_one": (0,), "watchdog_of_all": (0, 2)}.get(how, ())
timeout = 60.0 if by_watchdog or how in ("own_limit", "gave_up_and_went_on", "stopped_alone") else PATIENCE
if how == "short_timeout":
    timeout = 1.5  # below the tests' stall time
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
rank, world = dist.get_rank(), dist.get_world_size()
data = torch.ones(64)
launcher = os.getppid()


def idle() -> None:
    time.sleep(60)  # stands for a dead file server


def watchdog() -> None:
    time.sleep(PATIENCE)
    os.abort()  # as NCCL's watchdog does when a collective has timed out


dist.all_reduce(data)  # number 1
if how == "status_1_at_the_end":
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(data, group=pair)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        sys.exit(1)
    os._exit(1)  # as Ray Train's workers end when they have succeeded
elif by_watchdog:
    if rank == 1:
        idle()
    if rank in by_watchdog:
        threading.Thread(target=watchdog, daemon=True).start()
    dist.all_reduce(data)
elif how == "own_limit":
    if rank == 1:
        idle()
    work = dist.all_reduce(data, async_op=True)
    give_up_at = time.monotonic() + PATIENCE
    while not work.is_completed():
        if rank == 0 and time.monotonic() >= give_up_at:
            raise TimeoutError("the step takes too long")
        time.sleep(0.05)
elif how == "stopped_alone":
    if rank == 1:
        os.kill(launcher, signal.SIGSTOP)  # the launcher does not see it end at once, as one on another host
        # A child keeps the connections open, as DataLoader workers do, so the calls of the others do not fail.
        if os.fork() == 0:
            time.sleep(2 * PATIENCE)
            os.kill(launcher, signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGTERM)
    dist.all_reduce(data)
elif how in ("stopped", "short_timeout"):
    if rank == 1:
        idle()
    dist.all_reduce(data)
elif how in ("exits_with_1", "exits_with_0"):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(how[-1])))
    if rank == 1:
        idle()
    dist.all_reduce(data)
elif how == "left":
    if rank == 1:
        dist.destroy_process_group()
        idle()
    try:
        dist.all_reduce(data)
    finally:
        time.sleep(PATIENCE)  # stands for a program that saves its state before it fails
elif how == "exit_message":
    if rank == 1:
        sys.exit("no samples left on this rank")
    dist.all_reduce(data)
elif how == "gave_up_and_went_on":
    side = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=PATIENCE))
    if rank == 1:
        try:
            dist.recv(torch.zeros(1), src=0, group=side)
        except RuntimeError:
            print("no message from rank 0", flush=True)
    for _ in range(3):
        dist.all_reduce(data)
        time.sleep(0.5)
    dist.destroy_process_group()
elif how == "raised_and_exiting":
    if rank == 1:
        atexit.register(idle)
        raise ValueError("bad sample 4711")
    dist.all_reduce(data)
elif how == "exiting":
    if rank == 1:
        atexit.register(idle)
        sys.exit("no samples left on this rank")
    dist.all_reduce(data)
else:
    sys.exit(f"no such way: {how}")
