"""Three ranks check the values that each operation of NCCL gives. Exit status 0: all were right.

Kernels do not compute on the simulated device: all data comes from the host.
"""

import datetime
import os
from typing import Any

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60), device_id=device)
world = dist.get_world_size()
assert world == 3
ReduceOp = dist.ReduceOp


def data(*values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).cuda()


def zeros(count: int) -> torch.Tensor:
    return torch.zeros(count, device=device)


def check(found: torch.Tensor, *expected: float) -> None:
    assert found.cpu().tolist() == list(expected), (rank, found.cpu(), expected)


# Reductions of each type.
TYPES = [torch.int8, torch.uint8, torch.int32, torch.int64]
TYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
for dtype in TYPES:
    for op, expected in ((ReduceOp.SUM, 9), (ReduceOp.PRODUCT, 24), (ReduceOp.MIN, 2), (ReduceOp.MAX, 4)):
        tensor = data(rank + 2, 1, dtype=dtype)
        dist.all_reduce(tensor, op)
        check(tensor[:1], expected)
    if dtype.is_floating_point:
        tensor = data(rank, rank + 0.5, dtype=dtype)
        dist.all_reduce(tensor, ReduceOp.AVG)
        check(tensor, 1, 1.5)
        tensor = data(rank, 2, dtype=dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        check(tensor, 1.5, 3)

# More than one chunk, in which the ranks differ.
large = torch.arange(200_001, dtype=torch.float64)
tensor = (large + rank).cuda()
dist.all_reduce(tensor)
assert torch.equal(tensor.cpu(), 3 * large + 3)
gathered = torch.zeros(3 * 200_001, dtype=torch.float64, device=device)
dist.all_gather_into_tensor(gathered, (large + rank).cuda())
assert torch.equal(gathered.cpu(), torch.cat([large, large + 1, large + 2]))
part = torch.zeros(200_001, dtype=torch.float64, device=device)
dist.reduce_scatter_tensor(part, gathered)
assert torch.equal(part.cpu(), 3 * (large + rank))

# The other collectives.
tensor = data(rank, 7)
dist.broadcast(tensor, src=1)
check(tensor, 1, 7)
tensor = data(rank + 1)
dist.reduce(tensor, dst=2)
check(tensor, 6 if rank == 2 else rank + 1)
pieces = [zeros(2) for _ in range(world)]
dist.all_gather(pieces, data(rank, 10 * rank))
check(torch.cat([piece.cpu() for piece in pieces]), 0, 0, 1, 10, 2, 20)
uneven = [zeros(count + 1) for count in range(world)]
dist.all_gather(uneven, data(*[rank] * (rank + 1)))
check(torch.cat([piece.cpu() for piece in uneven]), 0, 1, 1, 2, 2, 2)
piece = zeros(1)
dist.reduce_scatter(piece, [data(rank + 10 * other) for other in range(world)])
check(piece, 3 + 30 * rank)
piece = zeros(world)
dist.all_to_all_single(piece, data(*(10 * rank + other for other in range(world))))
check(piece, *(10 * other + rank for other in range(world)))
pieces = [zeros(1) for _ in range(world)]
dist.all_to_all(pieces, [data(10 * rank + other) for other in range(world)])  # a rank sends to itself, too
check(torch.cat([piece.cpu() for piece in pieces]), *(10 * other + rank for other in range(world)))
dist.gather(data(rank), pieces_of_root := [zeros(1) for _ in range(world)] if rank == 1 else None, dst=1)
if pieces_of_root is not None:
    check(torch.cat([piece.cpu() for piece in pieces_of_root]), 0, 1, 2)
dist.scatter(piece := zeros(1), [data(5 + other) for other in range(world)] if rank == 0 else None, src=0)
check(piece, 5 + rank)
objects: list[Any] = [None] * world
dist.all_gather_object(objects, {"rank": rank, "text": "x" * 10 * rank})
assert [len(one["text"]) for one in objects] == [0, 10, 20]
dist.barrier()

# Messages: one by one, and a ring of several letters.
if rank < 2:
    piece = data(7) if rank == 0 else zeros(1)
    dist.send(piece, 1) if rank == 0 else dist.recv(piece, 0)
    check(piece, 7)
received = torch.zeros(70_000, device=device)
sent = torch.full((70_000,), float(rank)).cuda()
ring = [dist.P2POp(dist.isend, sent, (rank + 1) % world), dist.P2POp(dist.irecv, received, (rank - 1) % world)]
for work in dist.batch_isend_irecv(ring):
    work.wait()
assert received.cpu().unique().tolist() == [(rank - 1) % world]

# Several calls as one kernel.
tensors = [data(rank), data(1)]
with dist._coalescing_manager(device=device, async_ops=True) as manager:
    for tensor in tensors:
        dist.all_reduce(tensor)
manager.wait()
check(torch.cat([tensor.cpu() for tensor in tensors]), 3, 3)

# Groups: one with a new communicator, and one whose communicator is split off.
pair = dist.new_group([0, 2])
split = dist.split_group(split_ranks=[[0, 1], [2]])
if rank != 1:
    dist.all_reduce(tensor := data(rank + 1), group=pair)
    check(tensor, 4)
dist.all_reduce(tensor := data(rank + 1), group=split)
check(tensor, 3)

# Two groups: a collective that waits for a rank in one group does not block the other group's collectives.
store = dist.distributed_c10d._get_default_store()
other = dist.new_group([0, 1, 2])
dist.barrier(group=other)
waits, early = data(1), data(1)
pending = dist.all_reduce(waits, async_op=True) if rank == 0 else None
dist.all_reduce(early, group=other, async_op=True).wait()
check(early, 3)
if pending is not None:
    assert not pending.is_completed()
    store.set("seen", "1")
else:
    store.wait(["seen"])
    pending = dist.all_reduce(waits, async_op=True)
pending.wait()
check(waits, 3)

# A graph with collectives.
static = data(0)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode="thread_local"):
    dist.all_reduce(static)
    dist.all_reduce(static)
for value in (1, 2):
    static.copy_(torch.tensor([float(value)]))
    graph.replay()
    check(static, 9 * value)

dist.destroy_process_group()
