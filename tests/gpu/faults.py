"""The faults of the GPU suite with the right verdicts, and what otel-fr reports about a job with a fault."""

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
"""(category, culprits)."""
TIMING = "TORCH_NCCL_ENABLE_TIMING"
PYTORCHS_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables with the prefix of the files that PyTorch's watchdog writes. torch before 2.9 reads the second one."""
PYTORCHS_RECORDER = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "2000",
}
"""PyTorch's defaults since 2.9, but the watchdog ends a rank 2 s after its file is due, not 15 s."""
SETTLE_SECONDS = 15.0
"""Longest wait, after the first incident, for evidence that corrects it. On a busy machine, evidence comes late."""
FILES_SECONDS = 6.0
"""Longest wait, while the job hangs, until its files show the fault."""


@dataclass(frozen=True)
class Fault:
    """A fault of `tests/gpu/jobs/job.py`.

    Attributes:
        said: the right causes. otel-fr must report exactly one of them.
        number: sequence number of the incident's collective. None: not checked, or there is none.
        kind: the job's kind. "": as the name.
        without_timing: the right causes on `nccl` without timing, if `said` needs the begins of calls on devices.
        simulated: the fault of the simulated device that the job needs.
        needs_device: the fault cannot occur on a CPU.
        is_over: the job continues, and the incident resolves.
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
        """The right causes on this hardware."""
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
        Fault("stopped", [("rank_stuck", (1,)), ("rank_dead", (1,))], 2),  # it ignores SIGTERM, so it is killed
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
    """What was reported about one job.

    Attributes:
        live: the causes at the end of the observation.
        first: the cause that was opened first.
        hung, after: the causes in the files, while the job hangs and after its end. None: there is no file.
        torch: the causes in PyTorch's files. None: there is no file.
    """

    live: list[dict[str, Any]] = field(default_factory=list)
    first: dict[str, Any] | None = None
    hung: list[dict[str, Any]] | None = None
    after: list[dict[str, Any]] | None = None
    torch: list[dict[str, Any]] | None = None

    @property
    def seconds(self) -> float:
        """Seconds from the first rank's wait to the first incident."""
        assert self.first is not None
        texts = (str(self.first[key]).replace("Z", "+00:00") for key in ("started_at", "detected_at"))
        begin, end = map(datetime.fromisoformat, texts)
        return (end - begin).total_seconds()


def is_right(said: Sequence[dict[str, Any]] | None, truth: Sequence[Said]) -> bool:
    """Whether there is exactly one cause, and it is right."""
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
        timing: whether NCCL's calls are timed.
        watchdog: PyTorch's timeout in seconds, after which the job ends. None: a long timeout, and the job is ended
            once its incident is settled.
        stall: the stall time in seconds.
        patience: seconds to wait for an incident.
        engine: the engine that records. "": any.
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
                # The first files may have been written before the last rank had waited for long.
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
