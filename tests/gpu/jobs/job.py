"""One job of the GPU suite: argv is KIND, BACKEND, how many GPUs to use (0: the CPU), and the timeout in seconds.

The same program runs on gloo, on NCCL and on the simulated device. It does not use otel-fr. If there are more ranks
than GPUs, ranks share a GPU. NCCL refuses that for ranks of one host ("Duplicate GPU detected"), so each rank gets its
own host name for NCCL, which then uses sockets.
"""

import datetime
import os
import re
import signal
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

kind, backend, gpus, timeout = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
STEPS = 40
REPLAYS = 300
PAUSE = 0.02
"""Seconds between two steps. All steps last longer than several reads of PyTorch's recorder."""
LATE = 12.0
"""Seconds by which a rank is late: longer than the stall time."""
FLOATS = 1 << 18
BUSY_CYCLES = 10**12
"""Cycles of a GPU's clock (about 2 GHz): longer than any test waits."""


def join() -> torch.device:
    local = int(os.environ["LOCAL_RANK"])
    limit = datetime.timedelta(seconds=timeout)
    if not gpus:
        dist.init_process_group(backend, timeout=limit)
        return torch.device("cpu")
    if int(os.environ["LOCAL_WORLD_SIZE"]) > gpus:
        os.environ["NCCL_HOSTID"] = f"rank-{local}"
    device = torch.device("cuda", local % gpus)
    torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=limit, device_id=device if "nccl2" in backend else None)
    return device


device = join()
rank, world = dist.get_rank(), dist.get_world_size()
data = torch.ones(FLOATS, device=device)


def wait() -> float:
    """Wait on the host, if there is a GPU, until the device has done the enqueued work."""
    return float(data.sum().item())


def synchronize() -> None:
    """Do the same as `wait` in another way."""
    if gpus:
        torch.cuda.synchronize()
    else:
        wait()


def step() -> None:
    dist.all_reduce(data)
    wait()


def idle() -> None:
    time.sleep(3600)  # stands for a dead file server


# ---- healthy jobs


def steps() -> None:
    whole = torch.zeros(world * FLOATS, device=device)
    got = torch.zeros(64, device=device)
    pair = dist.new_group([0, 1], group_desc="pair")
    for number in range(STEPS):
        dist.all_reduce(data, op=dist.ReduceOp.MAX)
        dist.all_gather_into_tensor(whole, data)
        dist.broadcast(data, src=number % world)
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
    """Replay collectives that were captured once: no call in the program shows that they continue."""

    def body() -> None:
        dist.all_reduce(data, op=dist.ReduceOp.MAX)

    replay: Callable[[], None] = body
    if gpus:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                body()
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        # PyTorch's watchdog queries events in its own thread meanwhile.
        with torch.cuda.graph(captured, capture_error_mode="thread_local"):
            body()
        replay = captured.replay
    for _ in range(REPLAYS):
        replay()
        wait()
        time.sleep(PAUSE)
    if gpus:
        captured.reset()


def train() -> None:
    """Make many kinds of calls, then steps of DDP and of FSDP2."""
    steps()
    from torch.distributed.fsdp import fully_shard

    def layers() -> torch.nn.Sequential:
        return torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(device)

    sharded = layers()
    for layer in sharded:
        fully_shard(layer)
    for model in (torch.nn.parallel.DistributedDataParallel(layers()), fully_shard(sharded)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(15):
            model(torch.ones(16, 64, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(PAUSE)
        synchronize()


def pipeline() -> None:
    """Each stage receives from the previous one and sends to the next. Later stages take longer."""
    for _ in range(40):
        if rank:
            dist.recv(data, rank - 1)
        time.sleep(PAUSE * (rank + 1) / 2)
        if rank < world - 1:
            dist.send(data, rank + 1)
        synchronize()
    step()


# ---- faults of the program


def missing() -> None:
    if rank == 1:
        idle()
    step()


def absent() -> None:
    if rank > 0:
        idle()
    step()


def extra() -> None:
    """Rank 0 makes a step more than the others."""
    if rank == 0:
        step()
    idle()


def late() -> None:
    if rank == 1:
        time.sleep(LATE)
    for _ in range(100):
        step()
        time.sleep(PAUSE)


def operation() -> None:
    if rank == 2:
        dist.broadcast(data, src=0)
    step()
    step()


def order() -> None:
    gathered = torch.zeros(world * FLOATS, device=device)
    if rank == 2:
        step()
    dist.all_gather_into_tensor(gathered, data)
    if rank != 2:
        step()
    wait()


def reduce_op() -> None:
    dist.all_reduce(data, op=dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM)
    wait()
    dist.barrier()


def size() -> None:
    dist.all_reduce(data[: FLOATS // 2] if rank == 2 else data)
    wait()
    dist.barrier()


def dtype() -> None:
    dist.all_reduce(data.double() if rank == 2 else data)
    wait()
    dist.barrier()


def root() -> None:
    dist.broadcast(data, src=2 if rank == 2 else 0)
    wait()
    dist.barrier()


def subgroup() -> None:
    """Rank 2 waits for rank 0, which waits for rank 1."""
    pair = dist.new_group([0, 1], group_desc="pair")
    if rank < 2:
        dist.all_reduce(data, group=pair)
    step()
    if rank == 1:
        idle()
    if rank == 0:
        dist.all_reduce(data, group=pair)
        wait()
    step()


def send() -> None:
    """Rank 1 does not receive."""
    if rank == 0:
        dist.send(data, 1)
        synchronize()
    elif rank == 1:
        idle()
    step()


def batch() -> None:
    """Rank 1 leaves out its receive."""
    ring = [
        dist.P2POp(dist.isend, data, (rank + 1) % world),
        dist.P2POp(dist.irecv, torch.empty_like(data), (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(ring[:1] if rank == 1 else ring):
        work.wait()
    synchronize()
    step()


def killed() -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    step()


def raised() -> None:
    if rank == 1:
        raise ValueError("bad batch")
    step()


def stopped() -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    step()


def gil() -> None:
    """A regular expression that takes ages keeps the GIL."""
    if rank == 1:
        re.match("(a+)+$", "a" * 40 + "b")
    step()


def begins_anew() -> None:
    """Rank 1 does not join the next run. NCCL lets the others begin it."""
    dist.destroy_process_group()
    if rank == 1:
        idle()
    join()
    step()


def deadlock() -> None:
    """Each rank waits for its device. Each device waits in a group that another rank's device has not reached."""
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


# ---- faults of devices


def device_busy() -> None:
    """On rank 1, an endless kernel precedes the collective on its stream. Its host gets as far as the others."""
    if rank == 1:
        torch.cuda._sleep(BUSY_CYCLES)
    step()


def again() -> None:
    """Make steps until a fault of the simulated device stops them."""
    while True:
        step()
        time.sleep(PAUSE)


step()  # collective 1: creates the communicator
globals()[kind]()
print(f"[{rank}] went on to its end", flush=True)
dist.destroy_process_group()
