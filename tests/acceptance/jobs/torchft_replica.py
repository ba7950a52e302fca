"""One replica of a torchft job (torchft 0.2, gloo), under its own torchrun.

Usage: torchft_replica.py REPLICA MODE LAST. MODE is what rank 0 does after five steps with another replica: kill, stop,
go on. "stop inside": the last rank stops in the replica's own group. "rejoin": once the replica takes part, it writes
the number of the last step for all into the file LAST. "survive": it writes LAST once it is alone.

If the replica has several ranks, they also average in their own process group, as with FSDP. With BY_HAND in the
environment the manager averages gradients, which survives errors; torchft 0.2's DistributedDataParallel does not.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

replica, mode, last = sys.argv[1], sys.argv[2], Path(sys.argv[3])
ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])


def main() -> None:  # noqa: C901
    if ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = torch.nn.Linear(16, 16)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica_{replica}",
        timeout=timedelta(seconds=20),
        hostname="localhost",
    )
    by_hand = "BY_HAND" in os.environ
    ddp: Any = model if by_hand else DistributedDataParallel(manager, model)
    optimizer: Any = Optimizer(manager, inner)
    together = 0
    while not last.exists() or manager.current_step() < int(last.read_text()):
        optimizer.zero_grad()
        loss = ddp(torch.randn(4, 16)).square().mean()
        if ranks > 1:
            if rank == ranks - 1 and mode == "stop inside" and together == 5:
                os.kill(os.getpid(), signal.SIGSTOP)
            dist.all_reduce(loss.detach().clone())
        if rank == 0 and mode == "stop" and together == 5:
            manager.wait_quorum()  # so that the other replica knows nothing yet, and waits in the collective
            os.kill(os.getpid(), signal.SIGSTOP)
        loss.backward()
        if by_hand:
            for parameter in model.parameters():
                manager.allreduce(parameter.grad).wait()
        optimizer.step()
        size = manager.num_participants()
        together += size == 2
        print(f"replica {replica} rank {rank} step {manager.current_step()} of {size}", flush=True)
        if mode == "rejoin" and rank == 0 and size == 2 and not last.exists():
            last.with_name("new").write_text(str(manager.current_step() + 8))
            last.with_name("new").rename(last)
        if mode == "survive" and together and size == 1 and not last.exists():
            last.write_text(str(manager.current_step() + 8))
        time.sleep(0.1)
        if rank == 0 and mode == "kill" and together == 5:
            os.kill(os.getpid(), signal.SIGKILL)
    manager.shutdown(wait=False)
    if ranks > 1:
        dist.destroy_process_group()


main()
