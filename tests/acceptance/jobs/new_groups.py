"""Jobs that create process groups, named by argv[1]. Knows nothing of otel-fr. Ends by itself. Three ranks."""

import contextlib
import datetime
import os
import sys
import threading

import torch
import torch.distributed as dist

how = sys.argv[1]
patience = datetime.timedelta(seconds=float(sys.argv[2]) if len(sys.argv) > 2 else 60)


def new_group(ranks: list[int] | None, name: str) -> dist.ProcessGroup:
    return dist.new_group(ranks, timeout=patience, group_desc=name)


def start() -> int:
    dist.init_process_group("gloo", timeout=patience)
    return int(os.environ["RANK"])


def healthy_mesh() -> None:
    """Groups as DeviceMesh and FSDP2 make them, with local synchronization, in threads, and again after a new start."""
    from torch.distributed.device_mesh import init_device_mesh

    whole = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=patience)
    rank = int(os.environ["RANK"])
    for life in range(2):
        # c10d names the groups of both lives alike, so that each needs keys of its own in the store.
        dist.init_process_group("gloo", store=dist.PrefixStore(f"life{life}", whole), rank=rank, world_size=3)
        mesh = init_device_mesh("cpu", (1, 3), mesh_dim_names=("dp", "tp"))
        dist.all_reduce(torch.ones(4), group=mesh.get_group("tp"))
        own, _ = dist.new_subgroups(group_size=3)
        dist.all_reduce(torch.ones(4), group=own)
        if rank < 2:
            dist.all_reduce(torch.ones(4), group=dist.new_group([0, 1], use_local_synchronization=True))
        for name in ("x", "y"):
            thread = threading.Thread(target=new_group, args=([0, 2], name))
            thread.start()
            thread.join()
        dist.new_group(None, group_desc=f"of rank {rank}")
        with contextlib.suppress(ValueError):
            dist.new_group([0, 7])
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(torch.nn.Linear(8, 8), mesh=mesh["tp"])
        model(torch.ones(2, 8)).sum().backward()
        dist.barrier()
        dist.destroy_process_group()


rank = -1
if how == "healthy":
    healthy_mesh()
elif how == "left_out":
    rank = start()
    new_group(None, "first")
    if rank != 2:
        new_group([0, 1, 2], "tp")
    dist.all_reduce(torch.ones(4))
elif how == "other_order":
    rank = start()
    names = ["left", "right", "all"] if rank != 1 else ["right", "left", "all"]
    members = {"left": [0, 1], "right": [1, 2], "all": [0, 1, 2]}
    for name in names:
        new_group(members[name], name)
elif how == "one_name":
    rank = start()
    for name in ("tp", "dp") if rank != 2 else ("dp",):
        new_group([0, 1, 2], name)
    dist.barrier()
else:
    sys.exit(f"no such job: {how}")
