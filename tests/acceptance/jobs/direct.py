"""Makes some of its calls on the group's backend, past PyTorch's operators, as C++ extensions do. Knows nothing of
otel-fr."""

import time

import torch
import torch.distributed as dist

STEPS = 30

dist.init_process_group("gloo")
data = torch.ones(16)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
for _ in range(STEPS):
    dist.all_reduce(data, op=dist.ReduceOp.MAX)
    backend.allreduce([data]).wait()
    dist.broadcast(data, src=0)
    time.sleep(0.1)  # a step: the job lasts for several looks at PyTorch's recorder
dist.destroy_process_group()
