"""Jobs that destroy process groups, named by argv[1]. Knows nothing of otel-fr. Ends on its own. Three ranks."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

how = sys.argv[1]
rank = int(os.environ["RANK"])


def step(group: dist.ProcessGroup | None = None) -> None:
    dist.all_reduce(torch.ones(4), group=group)


def healthy() -> None:
    """Members destroy their groups at other times, in another order, only some of them, and make them anew."""
    whole = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    for life in range(2):
        # c10d names the groups of both lives alike, so that each needs keys of its own in the store.
        dist.init_process_group("gloo", store=dist.PrefixStore(f"life{life}", whole), rank=rank, world_size=3)
        names = [dist.new_group([0, 1, 2], group_desc=name) for name in ("tp", "dp")]
        local = dist.new_group([0, 1, 2], use_local_synchronization=True, group_desc="local")
        for group in (*names, local):
            step(group)
        for group in names if rank else reversed(names):
            time.sleep(0.2 * rank)
            dist.destroy_process_group(group)
        if rank == 1:
            dist.destroy_process_group(local)
        else:
            dist.new_group([0, 2], use_local_synchronization=True, group_desc="two")
        step()
        if rank == 1:
            time.sleep(6)  # longer than the stall time; nobody waits for it in a call
        if rank != 2 or life == 0:  # the exit of rank 2 ends its groups
            dist.destroy_process_group()


def destroys_early() -> None:
    """Rank 1 destroys a group that the others still use."""
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1, 2], timeout=datetime.timedelta(seconds=8), group_desc="tp")
    step(group)
    if rank == 1:
        close(group)
        time.sleep(60)
    step(group)


def close(group: dist.ProcessGroup) -> None:
    dist.destroy_process_group(group)


globals()[how]()
