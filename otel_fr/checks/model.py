"""What is checked, and what was found."""

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
"""No check: it sends the event of failed ones, in a process with a time limit as well."""
ATTRIBUTION: Final = "attribution"
"""No check either: it asks the collector for advice."""
KINDS: Final = (PATHS, MOUNTS, SPACE, GPU, GPU_MEMORY, NODE_HEALTH, CLOCK, COLLECTOR)

NODE_FAILED: Final = 69
"""Exit status of ``otel-fr check``, and of torchrun on a node that stays out: EX_UNAVAILABLE of sysexits.h, which
neither torchrun nor Python uses."""


NODE_EXCLUDED: Final = 77
"""Of torchrun on a node that follows the advice to be left out: EX_NOPERM."""
JOB_STOPPED: Final = 78
"""Of torchrun where it follows the advice to stop the job: EX_CONFIG, because a restart would fail in the same way."""


class Status(str, Enum):
    """The outcome of one check."""

    OK = "ok"
    SKIPPED = "skipped"
    """It does not apply here."""
    WARNING = "warning"
    """It failed, but is not one that keeps the node out."""
    FAILED = "failed"


class Outcome(NamedTuple):
    """What a check found. ``text``: one line for the user, without the target."""

    status: Status
    text: str


@dataclass(frozen=True)
class Task:
    """One thing to check.

    Attributes:
        target: the path, device or address, as it is shown.
        arguments: of the check, ready for JSON.
        limit: seconds after which it counts as failed.
        is_advisory: its failure is a warning.
    """

    kind: str
    target: str
    limit: float
    arguments: Mapping[str, object] = field(default_factory=dict)
    is_advisory: bool = False


@dataclass(frozen=True)
class Result:
    """What came of a task. ``seconds``: how long it took."""

    kind: str
    target: str
    status: Status
    text: str
    seconds: float

    def line(self) -> str:
        """It as one line, such as ``paths /data: no answer in 15 s``."""
        return f"{self.kind} {self.target}: {self.text}"
