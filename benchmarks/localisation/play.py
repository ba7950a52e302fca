"""Plays a job that `held_out` has made up. argv: a file with its groups, the calls of each rank, and its fault."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.localisation.job import device, end, fault, new_group, rank, step, wait

HOLD_STEPS = 300
"""Steps after the last call. Ranks that wait in them show earlier faults."""
_DTYPES = {"Float": torch.float32, "Half": torch.float16}
_CALLS: Any = dist


def tensors(shapes: list[list[int]], dtype: str) -> list[torch.Tensor]:
    return [torch.ones(shape, dtype=_DTYPES[dtype], device=device) for shape in shapes]


def play(call: dict[str, Any], group: Any) -> None:
    """Make one call. Its name is a function of torch.distributed."""
    ins, outs = tensors(call["ins"], call["dtype"]), tensors(call["outs"], call["dtype"])
    name, root = call["operation"], call["root"]
    function = getattr(_CALLS, name)
    options = {"group": group}
    if call["reduce_op"]:
        options["op"] = getattr(dist.ReduceOp, call["reduce_op"].upper())
    if name == "barrier":
        function(**options)
    elif name in ("send", "recv"):
        function(ins[0], call["peer"], **options)
    elif name == "broadcast":
        function(ins[0], src=root, **options)
    elif name == "reduce":
        function(ins[0], dst=root, **options)
    elif name == "gather":
        function(ins[0], outs or None, dst=root, **options)
    elif name == "all_to_all_single":
        function(outs[0], ins[0], call["output_splits"], call["input_splits"], **options)
    elif name == "all_reduce":
        function(ins[0], **options)
    else:
        function(outs[0], ins[0], **options)


def stop(how: str) -> None:
    """Do the rank's fault, if it is no wrong call."""
    if how == "stuck on the host":
        time.sleep(3600)
    elif how == "Python blocked":
        re.match("(a+)+$", "a" * 40 + "b")
    elif how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exception":
        raise ValueError("bad sample")
    elif how == "left early":
        os._exit(0)


def main() -> None:
    made = json.loads(Path(sys.argv[1]).read_text())
    groups = [dist.group.WORLD, *(new_group(ranks) for ranks in made["groups"][1:])]
    for _ in range(20):
        step()
    for number, call in enumerate([*made["calls"][rank], None]):
        if rank == made["faulty"] and number == made["at"]:
            fault()
            stop(made["kind"])
        if call is not None:
            play(call, groups[call["group"]])
            if call["host_waits"]:
                wait()
            time.sleep(0.01)
    for _ in range(HOLD_STEPS):
        step()
    end()


main()
