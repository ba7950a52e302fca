"""A training loop with sections, steps and heartbeats, and a fault in the section of one rank, named by argv[1]."""

import contextlib
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import otel_fr

fault, folder = sys.argv[1:]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
is_first = attempt == "0"
# A store of its own for each attempt: in torchrun's, gloo finds the addresses of the attempt before.
dist.init_process_group(
    "gloo",
    init_method=f"file://{folder}/store-{attempt}",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=datetime.timedelta(seconds=60),
)
rank = dist.get_rank()
data = torch.ones(64)


def read_from_a_dead_file_server() -> None:
    if fault == "kill":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if fault in ("kill", "kill_all"):
        time.sleep(600)
    while not os.path.exists(f"{folder}/go_on"):
        time.sleep(0.05)  # in steps, for the test says by that file when it has seen enough
    os._exit(0)


for step in range(40 if fault == "healthy" else 3):
    otel_fr.step(step)
    with otel_fr.section("loading", timeout=60 if fault in ("healthy", "heartbeat", "kill_all", "raises") else 1):
        if rank == 1 and step == 2 and fault in ("overrun", "kill", "kill_all") and is_first:
            read_from_a_dead_file_server()
    if rank == 1 and step == 2 and fault == "heartbeat":
        read_from_a_dead_file_server()
    if fault == "healthy" and step == 20:
        with otel_fr.section("evaluation"):
            time.sleep(3)
    if fault == "healthy" and step == 30:
        with otel_fr.section("checkpoint", timeout=60):
            time.sleep(6 if rank == 1 else 0)  # longer than the stall time
    with otel_fr.section("exchange", timeout=3 if fault == "kill_all" else None):
        dist.all_reduce(data)
for _ in range(8 if fault == "raises" else 0):
    with contextlib.suppress(OSError):
        otel_fr.start_section("reading", timeout=1)
        with otel_fr.section("decoding", timeout=1):
            time.sleep(0.3)
            raise OSError("a bad sample")  # "reading" ends when it is started again
    dist.all_reduce(data)
if fault == "raises":
    otel_fr.end_section("reading")
if fault == "late":
    with otel_fr.section("saving", timeout=1):
        time.sleep(2.5 if rank == 1 else 0)
    for _ in range(5):
        time.sleep(0.2)
        dist.all_reduce(data)
print(f"rank {rank} has finished")
dist.destroy_process_group()
