"""One job of the GPU suite: argv is KIND, cpu or cuda, how many GPUs to use, and the timeout in seconds.

The same program runs on gloo and on NCCL, so that a machine without a GPU runs all of it but the lines that need one.
It knows nothing of otel-fr. With more ranks than GPUs, several ranks share one: NCCL refuses that for ranks of one host
("Duplicate GPU detected"), so each gets a host name of its own for NCCL, which then goes through sockets.
"""

import datetime
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

kind, device_type, gpus, timeout = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
STEPS = 150
REPLAYS = 300
PAUSE = 0.02
"""Seconds between two steps: they take longer than several looks at PyTorch's recorder."""
FLOATS = 1 << 18
BUSY_CYCLES = 10**12
"""Of a GPU's clock, of about 2 GHz: longer than any test waits."""


def join() -> torch.device:
    local = int(os.environ["LOCAL_RANK"])
    limit = datetime.timedelta(seconds=timeout)
    if device_type == "cpu":
        dist.init_process_group("gloo", timeout=limit)
        return torch.device("cpu")
    if int(os.environ["LOCAL_WORLD_SIZE"]) > gpus:
        os.environ["NCCL_HOSTID"] = f"rank-{local}"
    torch.cuda.set_device(local % gpus)
    dist.init_process_group("nccl", timeout=limit)
    return torch.device("cuda", local % gpus)


device = join()
rank, world = dist.get_rank(), dist.get_world_size()
data = torch.ones(FLOATS, device=device)


def wait() -> float:
    """On a GPU, the host stands here until the device has done what was enqueued."""
    return float(data.sum().item())


def synchronize() -> None:
    """The same in another way."""
    if device_type == "cuda":
        torch.cuda.synchronize()
    else:
        wait()


def idle() -> None:
    time.sleep(3600)  # stands for a dead file server


def steps() -> None:
    whole = torch.zeros(world * FLOATS, device=device)
    got = torch.zeros(64, device=device)
    pair = dist.new_group([0, 1], group_desc="pair")
    for step in range(STEPS):
        dist.all_reduce(data, op=dist.ReduceOp.MAX)
        dist.all_gather_into_tensor(whole, data)
        dist.broadcast(data, src=step % world)
        if rank < 2:
            dist.all_reduce(got, group=pair)
        ring = [
            dist.P2POp(dist.isend, data[:64], (rank + 1) % world),
            dist.P2POp(dist.irecv, got, (rank - 1) % world),
        ]
        for work in dist.batch_isend_irecv(ring):
            work.wait()
        wait()
        time.sleep(PAUSE)
    dist.barrier()


def graph() -> None:
    """Collectives that are captured once and replayed: no call of the program's shows that they go on."""

    def body() -> None:
        dist.all_reduce(data, op=dist.ReduceOp.MAX)

    replay: Callable[[], None] = body
    if device_type == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                body()
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        # PyTorch's watchdog asks for events in a thread of its own meanwhile.
        with torch.cuda.graph(captured, capture_error_mode="thread_local"):
            body()
        replay = captured.replay
    for _ in range(REPLAYS):
        replay()
        wait()
        time.sleep(PAUSE)
    if device_type == "cuda":
        captured.reset()


dist.all_reduce(data)  # number 1: makes the communicator
wait()
if kind == "steps":
    steps()
elif kind == "graph":
    graph()
elif kind == "missing":
    if rank == 1:
        idle()
    dist.all_reduce(data)
    wait()
elif kind == "operation":
    if rank == 2:
        dist.broadcast(data, src=0)
    dist.all_reduce(data)
    wait()
    dist.all_reduce(data)
    wait()
elif kind == "reduce_op":
    dist.all_reduce(data, op=dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM)
    wait()
    dist.barrier()
elif kind == "size":
    dist.all_reduce(data[: FLOATS // 2] if rank == 2 else data)
    wait()
    dist.barrier()
elif kind == "deadlock":
    # Each rank waits for its device, and each device for a group that another rank's device has not come to.
    groups = [dist.new_group(list(range(world)), group_desc=name) for name in "AB"]
    for group in groups:
        dist.all_reduce(data, group=group)
    wait()
    for group in groups if rank == 0 else groups[::-1]:
        dist.all_reduce(data, group=group)
        if rank == 0:
            synchronize()
        else:
            wait()
elif kind == "device":
    # A kernel that does not end, before the collective on the same stream: the host of rank 1 is as far as the others.
    if rank == 1:
        torch.cuda._sleep(BUSY_CYCLES)
    dist.all_reduce(data)
    wait()
else:
    sys.exit(f"no such kind: {kind}")
dist.destroy_process_group()
