"""What recording adds to a collective on the thread that enqueues it, on torch's fake process group.

    python benchmarks/capture.py [--rounds 15] [--calls 2000]

Three variants of the same call take turns in one process, so that other load on the machine affects all alike:
bare; an empty Python kernel at the same place in the dispatcher; otel-fr. (PyTorch's own recorder does not record this
group.) The monitor is not started: it is another process, and benchmarks/monitor.py measures it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

os.environ["OTEL_FR_ENABLED"] = "1"
os.environ["OTEL_FR_RING_DIR"] = os.environ.get("OTEL_FR_RING_DIR") or (
    "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
)

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_fr.capture import hook, session
from otel_fr.capture.dispatcher import Kernels

LIMIT_US = 10.0
"""Added per collective, in Python (median)."""


def _no_monitor(ring: object) -> Any:
    raise OSError("not part of this measurement")


def _empty_kernel() -> Any:
    library = torch.library.Library("c10d", "IMPL")
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    for name in ("allreduce_", "_allgather_base_"):
        redispatch = getattr(torch.ops.c10d, name).default._handle.redispatch_boxed

        def kernel(keyset: Any, *args: Any, redispatch: Any = redispatch) -> Any:
            return redispatch(keyset & after, *args)

        library.impl(name, kernel, "BackendSelect", with_keyset=True)
    return library


def _microseconds(call: Callable[[], object], count: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begin) / count / 1000


def measure(name: str, call: Callable[[], object], rounds: int, count: int) -> float:
    """Print one line for a call; returns what otel-fr adds, in microseconds (median)."""
    current = hook._state.session
    assert current is not None
    current._kernels.remove()
    results: dict[str, list[float]] = {"bare": [], "empty": [], "otel-fr": []}
    for _ in range(rounds):
        call()
        results["bare"].append(_microseconds(call, count))
        empty = _empty_kernel()
        call()
        results["empty"].append(_microseconds(call, count))
        empty._destroy()
        kernels = Kernels(torch, current.recorder)
        call()
        results["otel-fr"].append(_microseconds(call, count))
        kernels.remove()
    bare, empty_us, ours = (statistics.median(results[key]) for key in ("bare", "empty", "otel-fr"))
    added = statistics.median(o - b for o, b in zip(results["otel-fr"], results["bare"], strict=True))
    work = statistics.median(o - e for o, e in zip(results["otel-fr"], results["empty"], strict=True))
    print(
        f"{name:24} bare {bare:6.2f} us   empty kernel {empty_us:6.2f} us ({empty_us / bare:.2f}x)   "
        f"otel-fr {ours:6.2f} us ({ours / bare:.2f}x)   added {added:5.2f} us, own work {work:5.2f} us"
    )
    return added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    mock.patch.object(session, "start_monitor", _no_monitor).start()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    tensor = torch.ones(1024)
    output = torch.ones(4096)
    added = [
        measure("all_reduce", lambda: dist.all_reduce(tensor), options.rounds, options.calls),
        measure(
            "all_gather_into_tensor",
            lambda: dist.group.WORLD._allgather_base(output, tensor),
            options.rounds,
            options.calls,
        ),
    ]
    print(f"target: {LIMIT_US:g} us added; highest here {max(added):.2f} us")


if __name__ == "__main__":
    main()
