"""One fault, named by argv[1], in a job of its own. Knows nothing of otel-fr."""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

fault = sys.argv[1]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
rank, world = dist.get_rank(), dist.get_world_size()
data = torch.ones(64)


def idle() -> None:
    time.sleep(60)  # stands for a dead file server; the other ranks give up first, also on a busy machine
    os._exit(0)


dist.all_reduce(data)  # number 1
if fault == "healthy":
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
        time.sleep(0.4)  # an ordinary late rank
    ring = [dist.P2POp(dist.isend, data, (rank + 1) % world), dist.P2POp(dist.irecv, pieces[0], (rank - 1) % world)]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    dist.barrier()
elif fault == "posted":
    # Messages under way behind a long computation: no thread waits for them until it is over.
    for _ in range(2):
        got = torch.zeros(64)
        works = [dist.irecv(got, (rank - 1) % world), dist.isend(data, (rank + 1) % world)]
        time.sleep(6)  # longer than the stall time
        for work in works:
            work.wait()
elif fault == "missing":
    if rank == 1:
        idle()
    dist.all_reduce(data)
elif fault == "killed":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(data)
elif fault == "killed_last":
    processes = [0] * world
    dist.all_gather_object(processes, os.getpid())
    if rank == 0:
        while any(os.path.exists(f"/proc/{process}") for process in processes[1:]):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
else:
    sys.exit(f"no such fault: {fault}")
dist.destroy_process_group()
