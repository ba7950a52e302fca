"""Trains with FSDP2 while a second thread makes collectives and messages in its own group, the same in each run.

Each rank then copies its ring file to argv[1]/RANK, once all its calls have ended.
"""

import contextlib
import random
import shutil
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from otel_fr.capture import hook
from otel_fr.ring import RecordState, RingReader

STEPS, ROUNDS = 20, 30

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
own = dist.new_group(list(range(size)), group_desc="second thread")
layers = [torch.nn.Linear(32, 32) for _ in range(3)]
model = torch.nn.Sequential(*layers)
mesh = init_device_mesh("cpu", (size,))
for layer in layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)


def issue() -> None:
    choose = random.Random(1)
    for number in range(ROUNDS):
        works = [dist.all_reduce(torch.ones(choose.choice((8, 64))), group=own, async_op=True) for _ in range(3)]
        works.append(dist.all_reduce(torch.ones(choose.randrange(1, 999)), dist.ReduceOp.MAX, own, async_op=True))
        for work in works:
            work.wait()
        dist.broadcast(torch.ones(number + 1), number % size, group=own)
        sent = dist.isend(torch.ones(2), (rank + 1) % size, group=own, tag=number % 2)
        dist.recv(torch.ones(2), (rank - 1) % size, group=own, tag=number % 2)
        sent.wait()


second = threading.Thread(target=issue, name="second")
second.start()
for _ in range(STEPS):
    model(torch.ones(4, 32)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
second.join()
session = hook._state.session
assert session is not None
with contextlib.closing(RingReader.open(session._writer.path)) as ring:
    while any(record.state == RecordState.IN_FLIGHT for record in ring.records()):
        time.sleep(0.01)  # gloo's thread wakes the waiting thread first, and then records the end
shutil.copy(session._writer.path, f"{sys.argv[1]}/{rank}")
dist.destroy_process_group()
