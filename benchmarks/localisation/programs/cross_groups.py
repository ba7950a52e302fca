"""Two by two ranks. Ranks 0 and 3 take their row first, 1 and 2 their column: each waits for the next."""

import torch.distributed as dist

from benchmarks.localisation.job import data, fault, new_group, rank, wait

TRUTH = {"kind": "deadlock", "culprits": [[0, 1, 2, 3]], "world": 4}

rows = [new_group(ranks) for ranks in ([0, 1], [2, 3])]
columns = [new_group(ranks) for ranks in ([0, 2], [1, 3])]
for number in range(50):
    mine = [rows[rank // 2], columns[rank % 2]]
    if number == 20:
        fault()
        if rank in (1, 2):
            mine.reverse()
    for group in mine:
        dist.all_reduce(data, group=group)
        wait()
