"""Sums over its ranks in each attempt; knows nothing of otel-fr, unless it asks for its node to be excluded.

Arguments: what happens; a folder. "nothing"; "fail": every rank fails in the first attempt; "one": rank 1 raises then,
rank 0 waits for its agent, and in the second attempt both have their files written; "lose": every rank waits until the
folder is gone, and raises; "exclude": every rank raises in every attempt, and in the first one, the rank on node-b asks
for its node to be excluded before.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

fault, folder = sys.argv[1], Path(sys.argv[2])
attempt, rank, world = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
has_folder = folder.exists()
dist.init_process_group("gloo")
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
if fault == "one":
    failed = folder / "failed"
    if failed.exists():
        import otel_fr
        from otel_fr.dumps.read import load

        own = Path(os.environ["OTEL_FR_DUMP_DIR"], f"otel_fr_rank_{rank}")
        while not own.exists() or load(own).facts["attempt"] != 1:
            otel_fr.dump()
            time.sleep(0.2)
    elif rank == 1:
        time.sleep(1)
        failed.touch()
        raise ValueError("bad sample 4711")
    else:
        time.sleep(600)
while fault == "lose" and folder.exists():
    time.sleep(0.05)
if fault == "fail" and attempt == 0:
    # At once: an agent whose rank still ends when the other one has joined again does not count the restart.
    os._exit(1)
if fault == "exclude" or (fault == "lose" and has_folder):
    raise ValueError("bad sample 4711")
