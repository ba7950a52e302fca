"""Trains for a while and prints rank 0's median step time in milliseconds. argv: ddp | fsdp2, steps."""

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

kind, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
layers = [torch.nn.Linear(512, 512) for _ in range(8)]
model = torch.nn.Sequential(*layers)
if kind == "ddp":
    model = DistributedDataParallel(model, bucket_cap_mb=2)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batch = torch.randn(64, 512)
times = []
for step in range(steps):
    begin = time.perf_counter()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step >= steps // 5:
        times.append(time.perf_counter() - begin)
if dist.get_rank() == 0:
    print("MEDIAN_MS", 1e3 * statistics.median(times), flush=True)
dist.destroy_process_group()
