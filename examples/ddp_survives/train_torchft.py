"""The training of train.py with torchft 0.2, one replica of one rank for each of its ranks. See compare.py.

Each replica needs TORCHFT_LIGHTHOUSE, and its number in REPLICA_GROUP_ID. Gradients are averaged by hand, as there: a
call that ends with an error makes DistributedDataParallel of torchft 0.2 raise AssertionError in its hook on gloo, and
the replica ends (torchft/ddp.py, ``assert fut._fut``).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torchft import Manager, Optimizer, ProcessGroupGloo

VICTIM = 1


def average_gradients(manager: Any, model: torch.nn.Module) -> None:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    manager.allreduce(flat).wait()  # after an error, the optimizer will leave out the step
    for gradient, averaged in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(averaged.view_as(gradient))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--hang-at", type=int, default=3, help="step at which replica 1 fails")
    parser.add_argument("--timeout", type=float, default=30.0, help="of collectives and torchft's calls, s")
    parser.add_argument(
        "--fault",
        choices=["quorum", "step", "leave"],
        default="quorum",
        help="stop before the quorum; stop in the step; leave in the step, as train_ddp_proactive.py does",
    )
    parser.add_argument("--ready", type=Path, required=True, help="folder in which the replicas await each other")
    options = parser.parse_args()

    replica = int(os.environ["REPLICA_GROUP_ID"])
    torch.manual_seed(7)
    model = torch.nn.Linear(256, 256)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    timeout = timedelta(seconds=options.timeout)

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica_{replica}",
        timeout=timeout,
        hostname="localhost",
    )
    optimizer: Any = Optimizer(manager, inner)
    data = torch.Generator().manual_seed(replica)
    (options.ready / str(replica)).touch()
    while len(list(options.ready.iterdir())) < int(os.environ["NUM_REPLICA_GROUPS"]):
        time.sleep(0.05)
    while manager.current_step() < options.steps:
        fails = replica == VICTIM and manager.current_step() == options.hang_at
        if fails and options.fault == "quorum":
            os.kill(os.getpid(), signal.SIGSTOP)
        optimizer.zero_grad()
        model(torch.randn(32, 256, generator=data)).square().mean().backward()
        if fails:
            manager.wait_quorum()  # so that the others do not know yet, and wait in the collective
            if options.fault == "leave":
                manager.shutdown(wait=False)
                sys.exit(0)
            os.kill(os.getpid(), signal.SIGSTOP)
        average_gradients(manager, model)
        before = manager.current_step()
        optimizer.step()
        if replica == 0 and manager.current_step() > before:
            size = manager.num_participants()
            print(f"{time.time():.2f} step {manager.current_step()} done by {size} ranks", flush=True)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
