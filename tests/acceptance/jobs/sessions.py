"""Process groups that are destroyed and created again with other ranks. Knows nothing of otel-fr. Ends within 20 s.

argv[1]: what the new ranks are. argv[2]: the rank of the second session that hangs.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

case, culprit = sys.argv[1], int(sys.argv[2])
patience = datetime.timedelta(seconds=8)
own = int(os.environ["RANK"])
world = int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=patience)


def session(number: int, rank: int, size: int) -> None:
    own_keys = dist.PrefixStore(f"session-{number}", store)
    dist.init_process_group("gloo", store=own_keys, rank=rank, world_size=size, timeout=patience)
    pair = dist.new_group([0, 1])
    for _ in range(5 + number):
        dist.all_reduce(torch.ones(8))
        if rank < 2:
            dist.all_reduce(torch.ones(8), group=pair)


def hang() -> None:
    time.sleep(10)
    os._exit(0)


session(0, own, world)
if case == "leaves":  # its first rank leaves, the others are counted anew
    dist.destroy_process_group()
    if own == 0:
        time.sleep(9)
        sys.exit(0)
    rank, size = own - 1, world - 1
else:  # the ranks are turned: every process has another number
    dist.destroy_process_group()
    rank, size = (own + 1) % world, world
session(1, rank, size)
if rank == culprit:
    hang()
dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
