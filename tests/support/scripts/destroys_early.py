"""A job of two ranks that destroys groups without waiting for their calls in flight. test_destroy.py runs it.

Each rank writes the states of these calls in its ring, and prints "done".
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from otel_fr.capture import hook
from otel_fr.ring import RingReader

tensor = torch.ones(4)  # kept: torch before 2.8 hangs if gloo's thread has the last reference to a tensor


def call(group: dist.ProcessGroup | None) -> dist.Work | None:
    if dist.get_rank() == 1:
        time.sleep(0.3)  # so that the other rank's call is in flight
    return dist.all_reduce(tensor, group=group, async_op=True)


dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([0, 1])
works = [call(group)]
dist.destroy_process_group(group)
del group
if "late" in sys.argv:  # a call in flight in another group does not delay the end
    group = dist.new_group([0, 1])
    dist.barrier(group)
    works.append(call(None))
    dist.destroy_process_group(group)
    del group
works.append(call(None))
session = hook._state.session
assert session is not None
ring = RingReader.open(session._writer.path)
dist.destroy_process_group()
states = [record.state.name for record in ring.records() if record.signature.operation == "all_reduce"]
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(states))
print("done")
