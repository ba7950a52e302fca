"""Two by two ranks. Rank 3 is stuck; rank 2 waits for it in its row, rank 1 in its column, rank 0 for rank 1 and 2."""

import time

import torch.distributed as dist

from benchmarks.localisation.job import data, fault, new_group, rank, wait

TRUTH = {"kind": "sub-group", "culprits": [[3]], "world": 4}

rows = [new_group(ranks) for ranks in ([0, 1], [2, 3])]
columns = [new_group(ranks) for ranks in ([0, 2], [1, 3])]
for number in range(50):
    if rank == 3 and number == 20:
        fault()
        time.sleep(3600)
    dist.all_reduce(data, group=rows[rank // 2])
    wait()
    dist.all_reduce(data, group=columns[rank % 2])
    wait()
