"""Exceptions of background threads, one case named by argv[1]. Knows nothing of otel-fr. Ends within 15 s."""

import datetime
import os
import queue
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

case = sys.argv[1]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
rank = dist.get_rank()
data = torch.ones(64)
batches: "queue.Queue[torch.Tensor]" = queue.Queue()


def send_metrics() -> None:
    raise OSError("no route to the metrics server")


def prefetch() -> None:
    raise ValueError("bad sample 4711")


def run_thread(target: Callable[[], None], name: str) -> None:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    thread.join()


def next_batch() -> None:
    try:
        batches.get(timeout=7)  # the thread that fills the queue is dead
    except queue.Empty:
        os._exit(0)


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


def checkpoint() -> None:
    """Writes a checkpoint beside the training, over a group of its own."""
    group = dist.new_group()
    dist.barrier(group)


def main_loop() -> None:
    """As of a framework that runs the training function in a thread of its own."""
    threading.Event().wait(14)
    os._exit(1)


dist.all_reduce(data)  # number 1
if rank == 0:
    run_thread(send_metrics, "metrics")
if case == "prefetch":
    if rank == 1:
        run_thread(prefetch, "prefetch")
        next_batch()
    dist.all_reduce(data)
elif case == "trains_in_thread":
    threading.Thread(target=train, name="train", daemon=True).start()
    main_loop()
elif case == "checkpoints_in_thread":
    run_thread(checkpoint, "checkpoint")
    main_loop_begun = threading.Thread(target=main_loop, daemon=True)
    main_loop_begun.start()
    train()
elif case == "shares_group":
    saver = threading.Thread(target=lambda: dist.broadcast(torch.ones(8), 0), name="saver")
    if rank == 0:
        saver.start()
        time.sleep(0.5)
        dist.all_reduce(data)
    else:
        threading.Timer(0.5, saver.start).start()
        dist.all_reduce(data)
else:
    sys.exit(f"no such case: {case}")
dist.destroy_process_group()
