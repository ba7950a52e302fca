"""Each rank gathers pieces of different sizes: legal, since all lists agree."""

import torch
import torch.distributed as dist

from benchmarks.localisation.job import device, end, rank, step, world

TRUTH = {"kind": "healthy", "culprits": [], "world": 3, "needs": "device"}

mine = torch.ones(16 * (rank + 1), device=device)
for _ in range(150):
    dist.all_gather([torch.empty(16 * (other + 1), device=device) for other in range(world)], mine)
    step()
end()
