"""Many small collectives; in one of them, the rank argv[1] asks for another reduce op, and nothing hangs. Knows
nothing of otel-fr. Ends when the file argv[2] is there, or after a minute."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

odd, stop = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
data, is_over = torch.ones(8), torch.zeros(1)
begun, number = time.monotonic(), 0
while not is_over:
    number += 1
    different = rank == odd and number == 37
    dist.all_reduce(data, op=dist.ReduceOp.MAX if different else dist.ReduceOp.SUM)
    data.fill_(1.0)
    if number % 20 == 0:
        is_over.fill_(float(os.path.exists(stop) or time.monotonic() - begun > 60))
        dist.broadcast(is_over, src=0)
    time.sleep(0.01)
dist.destroy_process_group()
