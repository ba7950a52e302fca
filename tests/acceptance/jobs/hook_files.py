"""A job that writes files of torch 2.14's FlightRecorderHook. gloo records, too."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

c10d: Any = torch._C._distributed_c10d
PATIENCE = 60.0


def await_(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def dump() -> bytes:
    data: bytes = c10d._dump_fr_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False)
    return data


def write(folder: Path, rank: int) -> None:
    part = folder / f"part_{rank}"
    part.write_bytes(dump())
    part.rename(folder / f"rank_{rank}")


def all_retired() -> bool:
    return all(entry["retired"] for entry in pickle.loads(dump())["entries"])


def waits() -> bool:
    newest = pickle.loads(dump())["entries"][-1]
    return (newest["profiling_name"], newest["input_sizes"]) == ("gloo:all_reduce", [[7]])


def write_when_waiting(folder: Path, rank: int) -> None:
    await_(waits)
    write(folder, rank)
    await_((folder / "rank_1").exists)
    os._exit(0)


def lists() -> None:
    """Calls of several tensors."""
    world = dist.get_world_size()
    pieces = [torch.ones(4) for _ in range(world)]
    dist.all_gather(pieces, torch.ones(4))
    dist.reduce_scatter(torch.ones(4), pieces)
    dist.all_gather_into_tensor(torch.ones(4 * world), torch.ones(4))
    dist.reduce_scatter_tensor(torch.ones(4), torch.ones(4 * world))
    with dist._coalescing_manager():
        for size in (4, 6):
            dist.all_gather_into_tensor(torch.ones(size * world), torch.ones(size))
    with dist._coalescing_manager():
        for size in (4, 6):
            dist.all_reduce(torch.ones(size))
    dist.all_gather_coalesced([[torch.ones(2), torch.ones(3)] for _ in range(world)], [torch.ones(2), torch.ones(3)])


def main() -> None:
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(3):  # the hook counts calls from its attachment on
        dist.all_reduce(torch.ones(4))
    hook = c10d.FlightRecorderHook.attach(dist.group.WORLD)
    pair = dist.new_group([0, 1], group_desc="a pair")
    hooks = [hook, c10d.FlightRecorderHook.attach(pair)] if rank < 2 else [hook]
    dist.all_reduce(torch.ones(4))
    if rank < 2:
        dist.all_reduce(torch.ones(5), group=pair)
    if rank == 0:
        dist.send(torch.ones(5), 1)
    elif rank == 1:
        dist.recv(torch.ones(5), 0)
    if kind == "lists":
        lists()
    if kind == "missing" and rank == 1:
        await_(lambda: all((folder / f"rank_{other}").exists() for other in (0, 2)))
        write(folder, rank)
        os._exit(0)
    if kind == "missing":
        threading.Thread(target=write_when_waiting, args=(folder, rank), daemon=True).start()
    dist.all_reduce(torch.ones(7))
    await_(all_retired)  # gloo's thread retires calls
    write(folder, rank)
    dist.barrier()
    for attached in hooks:
        attached.remove()
    dist.destroy_process_group()


main()
