"""DDP. The sampler gives rank 2 one batch less than the others, so it waits elsewhere for the end of the epoch."""

import time

import torch

from benchmarks.localisation.job import device, fault, rank, wait

TRUTH = {"kind": "missing", "culprits": [[2]], "world": 3}

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(device))
for number in range(20):
    if rank == 2 and number == 19:
        fault()
        time.sleep(3600)
    model(torch.ones(8, 64, device=device)).sum().backward()
    wait()
    time.sleep(0.05)
