"""A job of three ranks with the fault that argv[1] names. It does not use otel-fr, and ends on its own within 20 s.

argv[2]: gloo's timeout in seconds. The default of 8 is longer than the tests' stall time.
"""

import atexit
import datetime
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

fault = sys.argv[1]
patience = datetime.timedelta(seconds=float(sys.argv[2]) if len(sys.argv) > 2 else 8)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
data = torch.ones(64)


def start(**limits: datetime.timedelta) -> None:
    dist.init_process_group("gloo", **{"timeout": patience, **limits})


def begin(**limits: datetime.timedelta) -> None:
    start(**limits)
    dist.all_reduce(data)  # number 1


def idle() -> None:
    time.sleep(60)  # stands for a dead file server; the other ranks give up first, also on a busy machine
    os._exit(0)


def raise_in_thread(error: Exception, name: str) -> None:
    def fail() -> None:
        raise error

    thread = threading.Thread(target=fail, name=name, daemon=True)
    thread.start()
    thread.join()


def missing() -> None:
    """The thread that loads rank 1's batches has died. A thread of rank 0 has died, too, which harms nobody."""
    begin()
    if rank == 0:
        raise_in_thread(OSError("no route to the metrics server"), "metrics")
    if rank == 1:
        raise_in_thread(ValueError("bad sample 4711"), "prefetch")
        idle()
    dist.all_reduce(data)


# ---- how ranks end


def killed() -> None:
    begin()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(data)


def killed_last() -> None:
    begin()
    processes = [0] * world
    dist.all_gather_object(processes, os.getpid())
    if rank == 0:
        while any(os.path.exists(f"/proc/{process}") for process in processes[1:]):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


def watchdog() -> None:
    """Ranks 0 and 2 wait for rank 1 until a thread aborts them, as NCCL's watchdog does at the timeout."""
    begin(timeout=datetime.timedelta(seconds=60))
    if rank == 1:
        idle()
    threading.Timer(4.0, os.abort).start()
    dist.all_reduce(data)


def exit_message() -> None:
    begin()
    if rank == 1:
        sys.exit("no samples left on this rank")
    dist.all_reduce(data)


def raised_and_exiting() -> None:
    begin()
    if rank == 1:
        atexit.register(idle)
        raise ValueError("bad sample 4711")
    dist.all_reduce(data)


# ---- threads


def shares_group() -> None:
    """A thread writes a checkpoint beside the training, over the same group. Chance decides which call is first."""
    begin()
    saver = threading.Thread(target=lambda: dist.broadcast(torch.ones(8), 0), name="saver")
    if rank == 0:
        saver.start()
        time.sleep(0.5)
    else:
        threading.Timer(0.5, saver.start).start()
    dist.all_reduce(data)


def load_shard() -> None:
    """Waits for data that nobody writes, until the process ends."""
    reading, _writing = os.pipe()
    os.read(reading, 1)


def train() -> None:
    try:
        for step in range(10):
            if step == 5 and rank == 1:
                load_shard()
            dist.all_reduce(data)
    finally:
        os._exit(1)


def main_loop() -> None:
    threading.Event().wait(14)
    os._exit(1)


def trains_in_thread() -> None:
    """Like Ray Train, which needs the main thread itself."""
    begin()
    threading.Thread(target=train, name="train", daemon=True).start()
    main_loop()


def checkpoints_in_thread() -> None:
    """A thread that only writes checkpoints, over its own group, does not count."""
    begin()
    saver = threading.Thread(target=lambda: dist.barrier(dist.new_group()), name="saver")
    saver.start()
    saver.join()
    threading.Thread(target=main_loop, daemon=True).start()
    train()


# ---- process groups


def new_group(ranks: list[int] | None, name: str) -> dist.ProcessGroup:
    return dist.new_group(ranks, timeout=patience, group_desc=name)


def left_out() -> None:
    start()
    new_group(None, "first")
    if rank != 2:
        new_group([0, 1, 2], "tp")
    dist.all_reduce(data)


def other_order() -> None:
    start()
    members = {"left": [0, 1], "right": [1, 2], "all": [0, 1, 2]}
    for name in ["right", "left", "all"] if rank == 1 else ["left", "right", "all"]:
        new_group(members[name], name)


def other_ranks() -> None:
    start()
    dist.all_reduce(torch.ones(4), group=new_group([0, 1] if rank == 1 else [0, 1, 2], "tp"))


def split() -> None:
    start()
    if rank != 0:
        dist.group.WORLD.split_group([0, 1, 2], timeout=patience, group_desc="whole")
    dist.all_reduce(data)


def destroys_early() -> None:
    """Rank 1 destroys a group that the others still use."""
    start()
    group = new_group([0, 1, 2], "tp")
    dist.all_reduce(data, group=group)
    if rank == 1:
        dist.destroy_process_group(group)
        idle()
    dist.all_reduce(data, group=group)


# ---- groups that are destroyed and created again with other ranks


def session(number: int, store: dist.Store, rank: int, size: int) -> None:
    own_keys = dist.PrefixStore(f"session-{number}", store)
    dist.init_process_group("gloo", store=own_keys, rank=rank, world_size=size, timeout=patience)
    pair = dist.new_group([0, 1])
    for _ in range(5 + number):
        dist.all_reduce(data)
        if rank < 2:
            dist.all_reduce(data, group=pair)


def again(rank_then: int, world_then: int, culprit: int) -> None:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=patience)
    session(0, store, rank, world)
    dist.destroy_process_group()
    if rank_then < 0:
        time.sleep(9)  # this process has the store
        sys.exit(0)
    session(1, store, rank_then, world_then)
    if rank_then == culprit:
        idle()
    dist.all_reduce(data)


def stays_away() -> None:
    """Rank 1 does not come to the second session."""
    session(0, dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=patience), rank, world)
    dist.destroy_process_group()
    if rank == 1:
        idle()
    begin()


def turned() -> None:
    """In the second session, every process has another rank."""
    again((rank + 1) % world, world, 1)


def leaves() -> None:
    """The first rank leaves, and the others get new numbers."""
    again(rank - 1, world - 1, 0)


run: Callable[[], None] = globals()[fault]
run()
dist.destroy_process_group()
