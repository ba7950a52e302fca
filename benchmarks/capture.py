"""What recording adds to a collective on the thread that enqueues it, on torch's fake process group.

    python benchmarks/capture.py [--rounds 100] [--calls 200]

The variants of the same call take turns in one process, so that other load on the machine affects all alike: bare; an
empty Python kernel at the same place in the dispatcher; the Python engine; the compiled engine, where it can run, and
idle (its kernels are in place, but record nothing); PyTorch's `FlightRecorderHook`, where
this torch has it (2.14). PyTorch's recorder of 2.13 is part of the backends, and this one has none:
benchmarks/steps.py measures it on gloo. No monitor runs: it is another process, and benchmarks/monitor.py measures it.

A figure is the difference between a variant and the bare call, each in the fastest tenth of its rounds, which are
short: whatever else the machine does only adds to them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_fr.capture import engines
from otel_fr.capture.dispatcher import Kernels
from otel_fr.capture.recorder import Recorder

LIMIT_US = {"compiled": 0.5, "python": 25.0}
"""Microseconds that each engine may add to a collective with its call site."""

CAPACITY = 20_000
WARM_UP = 300
"""Calls before each round. They add the definitions for later calls, and let Python specialize the code."""
LIBRARIES = (f"{Path(str(torch.__file__)).parent}/", f"{Path(engines.__file__).parent}/")


@contextmanager
def bare() -> Iterator[None]:
    yield


@contextmanager
def empty_kernel() -> Iterator[None]:
    library = torch.library.Library("c10d", "IMPL")
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    for name in ("allreduce_", "_allgather_base_"):
        redispatch = getattr(torch.ops.c10d, name).default._handle.redispatch_boxed

        def kernel(keyset: Any, *args: Any, redispatch: Any = redispatch) -> Any:
            return redispatch(keyset & after, *args)

        library.impl(name, kernel, "BackendSelect", with_keyset=True)
    yield
    library._destroy()


@contextmanager
def hook() -> Iterator[None]:
    handle = torch._C._distributed_c10d.FlightRecorderHook.attach(dist.group.WORLD)
    yield
    handle.remove()


def _recorder(engine: engines.Engine, folder: Path) -> Recorder:
    c10d = dist.distributed_c10d
    writer = engine.create_ring([folder], engine.name, CAPACITY, {"rank": 0})
    recorder, kernels = engine.start(c10d, torch, writer, LIBRARIES)
    kernels.remove()
    recorder.group_created(dist.group.WORLD.group_name, dist.group.WORLD)
    return recorder


def _variants(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return contexts. Each engages a way of recording."""
    python_recorder = _recorder(engines.choose("python", torch), folder)

    @contextmanager
    def python() -> Iterator[None]:
        kernels = Kernels(torch, python_recorder)
        yield
        kernels.remove()

    found: dict[str, Callable[[], Any]] = {"bare": bare, "empty": empty_kernel, "python": python}
    if hasattr(torch._C._distributed_c10d, "FlightRecorderHook"):
        found["torch's hook"] = hook
    engine = engines.choose("auto", torch)
    if engine.library is None:
        print(f"no compiled engine: {engine.reason}")
        return found
    compiled_recorder: Any = _recorder(engine, folder)

    def compiled(idle: bool) -> Callable[[], Any]:
        @contextmanager
        def engaged() -> Iterator[None]:
            kernels = engine.install(torch, compiled_recorder)
            compiled_recorder.native.activate(not idle)
            yield
            kernels.remove()

        return engaged

    return {**found, "compiled": compiled(idle=False), "idle": compiled(idle=True)}


def _microseconds(call: Callable[[], object], count: int) -> float:
    begin = time.thread_time_ns()
    for _ in range(count):
        call()
    return (time.thread_time_ns() - begin) / count / 1000


def _first_tenth(values: list[float]) -> float:
    """Return the value that a tenth of them are below."""
    return sorted(values)[len(values) // 10]


def measure(
    name: str, call: Callable[[], object], variants: dict[str, Callable[[], Any]], rounds: int, count: int
) -> dict[str, float]:
    """Print one line for a call. Returns the microseconds that each variant adds to the bare call."""
    results: dict[str, list[float]] = {key: [] for key in variants}
    for _ in range(rounds):
        for key, engage in variants.items():
            with engage():
                for _ in range(WARM_UP):
                    call()
                results[key].append(_microseconds(call, count))
    fast = {key: _first_tenth(values) for key, values in results.items()}
    added = {key: value - fast["bare"] for key, value in fast.items() if key != "bare"}
    texts = [f"{key} +{value:.2f}" for key, value in added.items()]
    print(f"{name:24} bare {fast['bare']:6.2f} us   {'   '.join(texts)}", flush=True)
    return added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--calls", type=int, default=200)
    options = parser.parse_args()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    tensor = torch.ones(1024)
    output = torch.ones(4096)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "all_gather_into_tensor": lambda: dist.group.WORLD._allgather_base(output, tensor),
    }
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        variants = _variants(Path(folder))
        rows = [measure(name, call, variants, options.rounds, options.calls) for name, call in calls.items()]
    for engine, limit in LIMIT_US.items():
        if engine in rows[0]:
            print(f"{engine} engine: {max(row[engine] for row in rows):.2f} us added; target {limit:g}")


if __name__ == "__main__":
    main()
