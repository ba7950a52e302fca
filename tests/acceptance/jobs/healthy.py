"""A job that looks faulty, but is not. argv[1]: a function of this file. The job does not use otel-fr."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LONGER = 6.0
"""Seconds, longer than the stall time."""


def step(group: dist.ProcessGroup | None = None) -> None:
    dist.all_reduce(torch.ones(4), group=group)


def calls() -> None:
    """Calls of many kinds, a late rank, and messages that no thread waits for during a long computation."""
    dist.init_process_group("gloo")
    data = torch.ones(64)
    for _ in range(200):
        dist.all_reduce(data)
    pieces = [torch.zeros(64) for _ in range(world)]
    for root in range(world):
        dist.gather(data, pieces if rank == root else None, dst=root)
        dist.scatter(data, pieces if rank == root else None, src=root)
        dist.reduce(data.clone(), dst=root)
        dist.broadcast(data.clone(), src=root)
    dist.all_gather_object([None] * world, {"rank": "x" * rank * 50})
    group = dist.new_group([0, 1], group_desc="pair")
    if rank < 2:
        for _ in range(20):
            dist.all_reduce(data, group=group)
    if rank == 2:
        time.sleep(0.4)
    ring = [dist.P2POp(dist.isend, data, (rank + 1) % world), dist.P2POp(dist.irecv, pieces[0], (rank - 1) % world)]
    works = dist.batch_isend_irecv(ring)
    time.sleep(LONGER)
    for work in works:
        work.wait()
    dist.barrier()
    dist.destroy_process_group()


def groups() -> None:
    """Groups as DeviceMesh and FSDP2 make them, with local synchronization, in threads, and in two sessions.

    Members destroy groups at different times and in different orders, and some not at all.
    """
    from torch.distributed.fsdp import fully_shard

    whole = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    for life in range(2):
        # c10d gives the groups of both sessions the same names, so each session needs its own keys in the store.
        dist.init_process_group("gloo", store=dist.PrefixStore(f"life{life}", whole), rank=rank, world_size=3)
        destroy_some()  # first: c10d (before 2.14) names local groups by the number of the rank's groups
        mesh = init_device_mesh("cpu", (1, 3), mesh_dim_names=("dp", "tp"))
        step(mesh.get_group("tp"))
        own, _ = dist.new_subgroups(group_size=3)
        step(own)
        for name in ("x", "y"):
            thread = threading.Thread(target=dist.new_group, args=([0, 2],), kwargs={"group_desc": name})
            thread.start()
            thread.join()
        dist.new_group(None, group_desc=f"of rank {rank}")
        with contextlib.suppress(ValueError):
            dist.new_group([0, 7])
        model = fully_shard(torch.nn.Linear(8, 8), mesh=mesh["tp"])
        model(torch.ones(2, 8)).sum().backward()
        if rank == 1:
            time.sleep(LONGER)  # nobody waits for it in a call
        if rank != 2 or life == 0:  # the exit of rank 2 ends its groups
            dist.destroy_process_group()


def destroy_some() -> None:
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


def surroundings() -> None:
    """Actions of real programs around groups: stores, objects, meshes, DDP, groups made in loops. Four ranks."""
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
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
    own, _ = dist.new_subgroups(group_size=2)
    listed, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    model = DistributedDataParallel(torch.nn.Linear(8, 8), process_group=dp)
    for _ in range(plan[0]["steps"] if isinstance(plan[0], dict) else 0):
        model(torch.ones(2, 8)).sum().backward()
        for group in (tp, flat, own, listed):
            step(group)
    for turn in range(6):  # one rank comes late, another leaves early
        members = [0, 1, 2] if turn % 2 else [1, 3]
        made = dist.new_group(members, group_desc=f"turn {turn}")
        if rank in members:
            step(made)
            dist.destroy_process_group(made)
    # Each pair has its own order. c10d (before 2.14) names them by the number of the rank's groups.
    for pair in ([0, 1], [2, 3]) if rank < 2 else ([2, 3], [0, 1]):
        local = dist.new_group(pair, use_local_synchronization=True)
        if rank in pair:
            step(local)
    if rank % 2:  # only its members make it, which is enough if no rank creates a group later
        dist.new_group([1, 3])
    dist.monitored_barrier()
    store.add("done", 1)
    if rank == 3:
        del model  # see straggler.py
        dist.destroy_process_group()  # the other ranks end without this call


run: Callable[[], None] = globals()[sys.argv[1]]
run()
