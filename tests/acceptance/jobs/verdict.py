"""A job of many small collectives for tests of the verdict line: it says when it runs, and runs for long."""

import datetime
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
for step in range(600):
    dist.all_reduce(torch.ones(4))
    if step == 3:
        Path(f"{sys.argv[1]}-{dist.get_rank()}").touch()
    time.sleep(0.1)
