"""The model of the checks: kinds, tasks, outcomes and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

PATHS: Final = "paths"
MOUNTS: Final = "mounts"
SPACE: Final = "space"
GPU: Final = "gpu"
GPU_MEMORY: Final = "gpu_memory"
NODE_HEALTH: Final = "node_health"
CLOCK: Final = "clock"
COLLECTOR: Final = "collector"
EVENT: Final = "event"
"""Not a check: sends the event of failed checks, also in a process with a time limit."""
ATTRIBUTION: Final = "attribution"
"""Not a check: asks the collector for advice."""
KINDS: Final = (PATHS, MOUNTS, SPACE, GPU, GPU_MEMORY, NODE_HEALTH, CLOCK, COLLECTOR)

ARGUMENTS_VARIABLE: Final = "OTEL_FR_CHECK_ARGUMENTS"
"""Variable of a check's own process, with the check's arguments as JSON. URLs among them may contain a password, and
every user of a machine may read the command lines of all processes."""

NODE_FAILED: Final = 69
"""Exit status of ``otel-fr check``, and of torchrun on a node that stays out: EX_UNAVAILABLE of sysexits.h, which
neither torchrun nor Python uses."""


NODE_EXCLUDED: Final = 77
"""Exit status of torchrun on a node that follows the advice to stay out: EX_NOPERM."""
JOB_STOPPED: Final = 78
"""Exit status of torchrun if it follows the advice to stop the job: EX_CONFIG, as a restart would fail again."""


class Status(str, Enum):
    """The outcome of one check."""

    OK = "ok"
    SKIPPED = "skipped"
    """The check does not apply here."""
    WARNING = "warning"
    """The check failed, but does not keep the node out."""
    FAILED = "failed"


class Outcome(NamedTuple):
    """The outcome of a check. ``text``: one line for the user, without the target."""

    status: Status
    text: str


@dataclass(frozen=True)
class Task:
    """One thing to check.

    Attributes:
        target: the path, device or address, as shown to the user.
        arguments: arguments of the check, ready for JSON.
        limit: seconds after which the check counts as failed.
        is_advisory: True if a failure is only a warning.
    """

    kind: str
    target: str
    limit: float
    arguments: Mapping[str, object] = field(default_factory=dict)
    is_advisory: bool = False


@dataclass(frozen=True)
class Result:
    """The result of a task. ``seconds``: how long it took."""

    kind: str
    target: str
    status: Status
    text: str
    seconds: float

    def line(self) -> str:
        """Return the result as one line, such as ``paths /data: no answer in 15 s``."""
        return f"{self.kind} {self.target}: {self.text}"
