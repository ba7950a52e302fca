"""A mixture of experts: every rank sends a different number of tokens to every other rank."""

import torch
import torch.distributed as dist

from benchmarks.localisation.job import device, end, rank, step, world

TRUTH = {"kind": "healthy", "culprits": [], "world": 3, "is_timed": True}

for number in range(150):
    sent = [1 + (rank + 2 * other + number) % 5 for other in range(world)]
    taken = [1 + (other + 2 * rank + number) % 5 for other in range(world)]
    dist.all_to_all_single(torch.empty(sum(taken), device=device), torch.ones(sum(sent), device=device), taken, sent)
    step()
end()
