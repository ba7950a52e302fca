"""Sums over its ranks in each attempt. Arguments: what happens ("nothing", or one of these), and a folder.

fail: every rank fails in the first attempt. one: rank 1 raises in the first attempt, while rank 0 waits for its agent;
in the second attempt both ranks have their files written. lose: every rank waits until the folder is gone, and raises.
exclude: every rank raises in every attempt; in the first attempt, the rank on node-b first asks for its node's
exclusion.
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
    time.sleep(2)  # so that the collector hears of it before it hears of a rank's end
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
    # At once: an agent does not count the restart if its rank still ends when the other agent has joined again.
    os._exit(1)
if fault == "exclude" or (fault == "lose" and has_folder):
    raise ValueError("bad sample 4711")
