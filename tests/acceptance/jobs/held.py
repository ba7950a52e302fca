"""Waits, after a first collective, until the file argv[1] is there. Knows nothing of otel-fr."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    print("HELD", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
dist.barrier()
dist.destroy_process_group()
