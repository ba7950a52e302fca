"""A training loop with sections and steps. Rank 1 hangs in the first attempt, and ignores SIGTERM."""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import otel_fr

folder = sys.argv[1]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
# Each attempt has its own store: in torchrun's, gloo finds the addresses of the attempt before.
dist.init_process_group(
    "gloo",
    init_method=f"file://{folder}/store-{attempt}",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=datetime.timedelta(seconds=60),
)
rank = dist.get_rank()


def read_from_a_dead_file_server() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


for step in range(3):
    otel_fr.step(step)
    with otel_fr.section("loading", timeout=1):
        if rank == 1 and step == 2 and attempt == "0":
            read_from_a_dead_file_server()
    with otel_fr.section("exchange"):
        dist.all_reduce(torch.ones(64))
print(f"rank {rank} has finished")
dist.destroy_process_group()
