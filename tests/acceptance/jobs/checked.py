"""Sums over its ranks in each attempt; knows nothing of otel-fr, unless it asks for its node to be excluded.

Arguments: prefix of the stores' files; what happens: "nothing", "raise" (in every rank, in the first attempt), "lose"
(as raise, after the ranks have removed the folder named by the third argument, if it is there), or "exclude" (every
rank raises in every attempt, and in the first one, the rank on node-b asks for its node to be excluded before).
"""

import datetime
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist

prefix, fault, *folder = sys.argv[1:]
attempt, rank, world = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
# A store for each attempt: in torchrun's own, gloo's second attempt may find the addresses of the first.
store = dist.FileStore(f"{prefix}.{attempt}.{world}", world)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60))
total = torch.ones(1)
dist.all_reduce(total)
print(f"attempt {attempt}: rank {rank} of {world} has the sum {total.item():g}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
if fault == "exclude" and attempt == 0:
    if os.environ["OTEL_RESOURCE_ATTRIBUTES"].endswith("node-b"):
        from otel_fr.fault_tolerance.client import RankMonitorClient, WorkloadAction, WorkloadControlRequest

        RankMonitorClient().send_workload_control_request(
            WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "the NIC flaps")
        )
    time.sleep(2)  # the collector learns of it before it learns of the end of any rank
if fault == "exclude" or (fault != "nothing" and attempt == 0):
    if fault == "lose":
        shutil.rmtree(folder[0], ignore_errors=True)
    raise ValueError("bad sample 4711")
