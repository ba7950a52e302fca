"""A job of four ranks. Rank 2 hangs in `load_shard` until the file argv[1] exists; then the job runs to its end."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

HANGS_AT = 5


def load_shard(step: int) -> torch.Tensor:
    while step == HANGS_AT and dist.get_rank() == 2 and not os.path.exists(sys.argv[1]):
        time.sleep(0.05)  # stands for a dead file server
    return torch.randn(64)


dist.init_process_group("gloo")
Path(f"pid-{dist.get_rank()}").write_text(str(os.getpid()))
for step in range(HANGS_AT + 3):
    dist.all_reduce(load_shard(step))
dist.destroy_process_group()
