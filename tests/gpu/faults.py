"""The faults of the GPU suite with their truth, and what otel-fr says of a job that has one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.gpu.hardware import TIMEOUT, Hardware
from tests.support import torchrun
from tests.support.collector_process import Collector
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for

Said = tuple[str, tuple[int, ...]]
"""A category, and the culprits."""
TIMING = "TORCH_NCCL_ENABLE_TIMING"
PYTORCHS_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The prefix of the files that PyTorch's watchdog writes; the second is its name before torch 2.9."""
PYTORCHS_RECORDER = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "2000",
}
"""PyTorch's defaults since 2.9; and its watchdog ends a rank two seconds after its file is due, instead of fifteen."""
SETTLE_SECONDS = 15.0
"""After the first incident, at most, for what the rest of the evidence makes of it: on a busy machine it comes late."""
FILES_SECONDS = 6.0
"""While the job hangs, for its files to be written anew."""


@dataclass(frozen=True)
class Fault:
    """A kind of `tests/gpu/jobs/job.py`.

    Attributes:
        said: any of these is right, and nothing else beside it.
        number: of the collective of the incident; None: not asked, or it has none.
        without_timing: where the begins of calls on devices are needed: what is right on `nccl` without timing.
        simulated: the fault of the simulated device that the job needs.
        needs_device: there is no such fault on a CPU. is_over: the job continues, and the incident resolves.
    """

    name: str
    said: Sequence[Said]
    number: int | None = None
    kind: str = ""
    without_timing: Sequence[Said] = ()
    simulated: str = ""
    needs_device: bool = False
    is_over: bool = False

    def truth(self, hardware: Hardware, *, timing: bool) -> Sequence[Said]:
        """What is right there."""
        shows_begins = timing or not hardware.gpus or hardware.backend == "nccl2"
        return self.said if shows_begins or not self.without_timing else self.without_timing


STALLED: Said = ("stalled_collective", ())
FAULTS = {
    fault.name: fault
    for fault in (
        Fault("missing", [("missing_rank", (1,))], 2),
        Fault("absent", [("missing_rank", (1, 2))], 2),
        Fault("extra", [("missing_rank", (1, 2))], 2),
        Fault("late", [("missing_rank", (1,))], 2, is_over=True),
        Fault("operation", [("op_mismatch", (2,))], 2),
        Fault("order", [("op_mismatch", (2,))], 2),
        Fault("size", [("size_mismatch", (2,))], 2),
        Fault("dtype", [("dtype_mismatch", (2,))], 2),
        Fault("root", [("root_mismatch", (2,))], 2),
        Fault("reduce_op", [("reduce_op_mismatch", (2,))], 2),
        Fault("subgroup", [("missing_rank", (1,))], 2),
        Fault("send", [("unmatched_p2p", (1,)), ("missing_rank", (1,))]),
        Fault("batch", [("unmatched_p2p", (1,))]),
        Fault("killed", [("rank_dead", (1,))], 2),
        Fault("raised", [("rank_dead", (1,))], 2),
        Fault("stopped", [("rank_stuck", (1,)), ("rank_dead", (1,))], 2),  # SIGKILL: it ignores SIGTERM
        Fault("gil", [("rank_stuck", (1,))], 2),
        Fault("begins_anew", [("missing_rank", (1,))], 1, needs_device=True),  # on gloo, init_process_group waits
        Fault("deadlock", [("deadlock", (0,))], 2),  # the others both take B before A
        Fault("device_busy", [("rank_stuck", (1,))], 2, without_timing=[STALLED], needs_device=True),
        Fault("device_stuck", [("rank_stuck", (1,))], kind="again", simulated="stuck rank=1 after=20"),
        Fault("endless", [("rank_stuck", (1,))], 21, kind="again", simulated="endless rank=1 after=20"),
        Fault("init_hang", [STALLED], 1, kind="again", simulated="init_hang rank=1"),
    )
}  # fmt: skip


@dataclass
class Observed:
    """What was said of one job.

    Attributes:
        live: the causes at the end of the observation. first: of the incident that was opened first.
        seconds: from the first rank that waits to that incident. hung, after: what the files say while the job hangs,
            and after its end. torch: what PyTorch's files say; None: there are none.
    """

    live: list[dict[str, Any]] = field(default_factory=list)
    first: dict[str, Any] | None = None
    hung: list[dict[str, Any]] | None = None
    after: list[dict[str, Any]] | None = None
    torch: list[dict[str, Any]] | None = None

    @property
    def seconds(self) -> float:
        """From when the first rank waited to the first incident."""
        assert self.first is not None
        texts = (str(self.first[key]).replace("Z", "+00:00") for key in ("started_at", "detected_at"))
        begin, end = map(datetime.fromisoformat, texts)
        return (end - begin).total_seconds()


def is_right(said: Sequence[dict[str, Any]] | None, truth: Sequence[Said]) -> bool:
    """One cause, and it is the right one."""
    return said is not None and [(one["category"], tuple(one["culprit_ranks"])) for one in said] in [[t] for t in truth]


def observe(
    hardware: Hardware,
    fault: Fault,
    folder: Path,
    *,
    timing: bool = False,
    watchdog: float | None = None,
    stall: float = 2.0,
    patience: float = 60.0,
    engine: str = "",
) -> Observed:
    """Run a job with the fault under a collector.

    Args:
        timing: of NCCL's calls. watchdog: seconds of PyTorch's timeout, whose end is awaited; None: it is long, and the
            job is ended once its incident is settled.
        stall: the stall time. patience: seconds to wait for an incident. engine: that records; "": any.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = Observed()
    (folder / "torch").mkdir()
    prefix = str(folder / "torch" / "trace_")
    truth = fault.truth(hardware, timing=timing)
    with torchrun.collector(folder / "collector") as running:
        env = {
            **torchrun.endpoint(running, stall),
            TIMING: str(int(timing)),
            **dict.fromkeys(PYTORCHS_FILES, prefix),
            **PYTORCHS_RECORDER,
            **({"OTEL_FR_CAPTURE_ENGINE": engine} if engine else {}),
        }
        kind, dumps = fault.kind or fault.name, folder / "job" / "dumps"
        with hardware.started(folder / "job", kind, env, watchdog or TIMEOUT, fault.simulated) as job:
            _await_incident(running, found, truth, patience)
            if watchdog is not None:
                job.wait(20 * watchdog)
            else:
                # The first files may be of before the last rank waited for long.
                end = time.monotonic() + FILES_SECONDS
                while not is_right(found.hung, truth) and time.monotonic() < end:
                    found.hung = _analyzed(dumps)
        found.live = running.causes()
    found.after, found.torch = _analyzed(dumps), _analyzed(folder / "torch")
    return found


def _await_incident(running: Collector, found: Observed, truth: Sequence[Said], patience: float) -> None:
    """Wait for the first incident, and then for the right one: later evidence may correct it."""
    wait_for(lambda: running.causes(), patience)
    found.first = next(iter(sorted(running.causes(), key=lambda one: one["detected_at"])), None)
    wait_for(lambda: is_right(running.causes(), truth), SETTLE_SECONDS)


def _analyzed(folder: Path) -> list[dict[str, Any]] | None:
    """The causes that `otel-fr analyze` finds in a folder; None: there is no file."""
    if not folder.exists() or not any(folder.iterdir()):
        return None
    _, report = torchrun.Job(0, "", folder).analyze()
    return cause_incidents(report.get("incidents", []))
