"""One rank of benchmarks/steps.py: runs blocks of steps on request from standard input, and measures each.

argv: off | otel_fr | recorder | hook; cpu | cuda | fake; the width of the model, and the rows of a batch. Each line of
the input is ``{"kind": KIND, "steps": N, "record": bool}``; each line of the output is one `Cost` as JSON. The first
output line names the recorder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_fr.capture import hook
from otel_fr.capture.engines import COMPILED
from otel_fr.ring import RingReader

SMALL_CALLS = 50
"""All-reduces of a tensor-parallel step."""
LAYERS = 8
MONITOR_SECONDS = 60.0
"""Limit for the start of a rank's monitor, on a busy machine."""

FAKE = sys.argv[2] == "fake"
"""True: on the CPU, in a group in which the other rank does not exist."""
DEVICE = "cpu" if FAKE else sys.argv[2]
WIDTH, BATCH = int(sys.argv[3]), int(sys.argv[4])
Step = Callable[[], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The seconds of a block.

    Attributes:
        wall: elapsed time.
        thread: CPU time of the thread that trains.
        process: CPU time of all threads of the rank.
        monitor: CPU time of the rank's monitor in the same time; 0 without one.
    """

    wall: float
    thread: float
    process: float
    monitor: float


def trainer(model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(BATCH, WIDTH, device=DEVICE)

    def step() -> None:
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def stack() -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, device=DEVICE) for _ in range(LAYERS)])


def ddp() -> Step:
    layers = stack()
    return trainer(DistributedDataParallel(layers, bucket_cap_mb=2))


def fsdp2() -> Step:
    layers = stack()
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(layers, mesh=mesh)
    return trainer(layers)


def tensor_parallel() -> Step:
    tensor = torch.zeros(1024, device=DEVICE)

    def step() -> None:
        for _ in range(SMALL_CALLS):
            dist.all_reduce(tensor)

    return step


KINDS: dict[str, Callable[[], Step]] = {"ddp": ddp, "fsdp2": fsdp2, "tp": tensor_parallel}
if FAKE:
    del KINDS["ddp"]  # see LEFT_OUT


class Recording:
    """Engages and releases this process's recording of calls. All other parts of the recording continue.

    Released compiled kernels stay installed, and only pass calls on. A new installation for each block would move the
    model's buffers in the heap, which costs more than the kernels. The row "idle" of benchmarks/capture.py shows their
    cost when they record nothing. Released Python kernels are removed.
    """

    def __init__(self) -> None:
        session = hook._state.session
        assert session is not None, "this rank is not recorded"
        self._recorder: Any = session.recorder
        self._engine = session.engine
        self._kernels: Any = session._kernels
        self._on = True
        self.by = session.engine.name
        deadline = time.monotonic() + MONITOR_SECONDS
        with RingReader.open(session._writer.path) as ring:
            while not ring.monitor_pid:
                assert time.monotonic() < deadline, "this rank has no monitor"
                time.sleep(0.01)
            self.monitor = ring.monitor_pid

    def engage(self, on: bool) -> None:
        if self.by == COMPILED:
            self._recorder.native.activate(on)
        elif on and not self._on:
            self._kernels = self._engine.install(torch, self._recorder)
        elif self._on and not on:
            self._kernels.remove()
        self._on = on


def cpu_seconds(pid: int) -> float:
    """Return another process's CPU time, from its CPU clock (`clock_getcpuclockid`, Linux); 0 for pid 0."""
    return time.clock_gettime(~pid << 3 | 2) if pid else 0.0


def synchronize() -> None:
    """Wait for the device, if there is one, so that its work for a step counts in this step."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def join() -> None:
    """Make the default process group. If there are more ranks than GPUs, ranks share them (tests/gpu/jobs/job.py)."""
    if FAKE:
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        return
    if DEVICE == "cpu":
        dist.init_process_group("gloo")
        return
    local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if int(os.environ["LOCAL_WORLD_SIZE"]) > gpus:
        os.environ["NCCL_HOSTID"] = f"rank-{local}"
    torch.cuda.set_device(local % gpus)
    dist.init_process_group("nccl")


def measure(step: Step, steps: int, monitor: int) -> Cost:
    step()  # the first step after a change of the recorder; then the barrier lets both ranks begin together
    dist.barrier()
    synchronize()
    start = (time.perf_counter(), time.thread_time(), time.process_time(), cpu_seconds(monitor))
    for _ in range(steps):
        step()
    synchronize()
    end = (time.perf_counter(), time.thread_time(), time.process_time(), cpu_seconds(monitor))
    return Cost(*[after - before for before, after in zip(start, end, strict=True)])


def hooked() -> Any:
    """Attach torch 2.14's `FlightRecorderHook` to the default group, and return it; None: this torch has none."""
    kind = getattr(torch._C._distributed_c10d, "FlightRecorderHook", None)
    return None if kind is None else kind.attach(dist.group.WORLD)


def entries() -> int:
    """Return the number of calls in PyTorch's own recorder."""
    c10d = torch._C._distributed_c10d
    dump = c10d._dump_fr_trace_json if DEVICE == "cpu" else c10d._dump_nccl_trace_json
    return len(json.loads(dump()).get("entries", []))


def main(answers: TextIO) -> None:
    variant = sys.argv[1]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    join()
    recording = Recording() if variant == "otel_fr" else None
    attached = hooked() if variant == "hook" else None
    steps = {kind: make() for kind, make in KINDS.items()}
    for step in steps.values():
        step()
    by = variant
    if recording is not None:
        by = recording.by
    elif variant == "hook" and attached is None:
        by = "nothing: this torch has no FlightRecorderHook"
    elif variant == "recorder" and not entries():
        by = "nothing: PyTorch's recorder has no entries"
    print(json.dumps({"by": by, "torch": str(torch.__version__)}), file=answers, flush=True)
    for line in sys.stdin:
        block = json.loads(line)
        if recording is not None:
            recording.engage(block["record"])
        cost = measure(steps[block["kind"]], block["steps"], recording.monitor if recording is not None else 0)
        print(json.dumps(dataclasses.asdict(cost)), file=answers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    # gloo writes to standard output, so answers need another descriptor.
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        main(output)
