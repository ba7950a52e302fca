"""Jobs that create process groups, named by argv[1]. Knows nothing of otel-fr. Ends on its own. Three ranks."""

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


def healthy_surroundings() -> None:
    """What real programs do around groups: stores, objects, meshes, DDP, groups made in loops. Four ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel

    rank = start()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("config", b"7")
    assert store.get("config") == b"7"
    store.add("arrived", 1)
    everybody: list[object] = [None] * 4
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * (rank + 1)})
    plan = [{"steps": 2}, "plan"] if rank == 0 else [None, None]
    dist.broadcast_object_list(plan, src=0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
    flat = mesh["dp", "tp"]._flatten("both").get_group()
    own, _ = dist.new_subgroups(group_size=2, timeout=patience)
    listed, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]], timeout=patience)
    model = DistributedDataParallel(torch.nn.Linear(8, 8), process_group=dp)
    for _ in range(plan[0]["steps"] if isinstance(plan[0], dict) else 0):
        model(torch.ones(2, 8)).sum().backward()
        for group in (tp, flat, own, listed):
            dist.all_reduce(torch.ones(4), group=group)
    for turn in range(6):  # one rank comes late, another leaves early
        members = [0, 1, 2] if turn % 2 else [1, 3]
        made = new_group(members, f"turn {turn}")
        if rank in members:
            dist.all_reduce(torch.ones(2), group=made)
            dist.destroy_process_group(made)
    # Each pair in an order of its own. c10d (before 2.14) names them by how many groups a rank has.
    for pair in ([0, 1], [2, 3]) if rank < 2 else ([2, 3], [0, 1]):
        local = dist.new_group(pair, use_local_synchronization=True, timeout=patience)
        if rank in pair:
            dist.all_reduce(torch.ones(2), group=local)
    if rank % 2 and not os.environ.get("TORCH_DIST_INIT_BARRIER"):
        new_group([1, 3], "made by its members only, which is enough as long as no rank creates groups after that")
    dist.monitored_barrier()
    store.add("done", 1)
    if rank == 3:
        dist.destroy_process_group()  # the others leave without


rank = -1
if how == "healthy":
    healthy_mesh()
elif how == "surroundings":
    healthy_surroundings()
elif how == "split":
    rank = start()
    if rank != 0:
        dist.group.WORLD.split_group([0, 1, 2], timeout=patience, group_desc="whole")
    dist.all_reduce(torch.ones(4))
elif how == "other_ranks":
    rank = start()
    dist.all_reduce(torch.ones(4), group=new_group([0, 1] if rank == 1 else [0, 1, 2], "tp"))
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
else:
    sys.exit(f"no such job: {how}")
