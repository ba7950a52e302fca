"""Makes the tasks that the settings request for this node."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from otel_fr.checks import model
from otel_fr.checks.settings import CheckSettings
from otel_fr.checks.storage import LUSTRE_HEALTH, read_mounts
from otel_fr.redaction import hide_password

MAX_MOUNTS: Final = 200
"""Most mounts that are checked. A node has some dozens of mounts, or hundreds of homes. Each check starts a process."""
MEMORY_TOLERANCE_MB: Final = 512.0
MEMORY_POLL: Final = 2.0
"""As ``gpu_memory_tolerance_mb`` and ``gpu_memory_poll_interval`` (seconds) of NVIDIA's extension."""
NODE_HEALTH_TIMEOUT: Final = 60.0
"""Seconds for the node health service, which runs a script; as in nvidia-resiliency-ext."""
CLOCK_SECONDS: Final = 5.0
"""Largest allowed difference of clocks. Some seconds make times in traces confusing, and with minutes, certificates and
tokens are refused."""
_STARTUP: Final = 5.0
"""A check's process counts as hanging this many seconds after the check's own timeout."""


def tasks(
    settings: CheckSettings, *, is_restart: bool = False, mounts: Sequence[str] | None = None
) -> list[model.Task]:
    """Return the checks to run. If there are more than `MAX_MOUNTS` mounts, a task says how many are left out.

    Args:
        is_restart: True if ranks of this node have run and were ended. Their GPU memory must be free again.
        mounts: mounts of network file systems; None: this process's mounts.
    """
    found = _all(settings, is_restart, read_mounts() if mounts is None else mounts)
    return [task for task in found if task.kind in settings.kinds]


def _all(settings: CheckSettings, is_restart: bool, mounts: Sequence[str]) -> Iterator[model.Task]:
    def task(kind: str, target: str, limit: float = settings.timeout, **arguments: object) -> model.Task:
        return model.Task(kind, target, limit, arguments, kind in settings.advisory)

    for path in settings.paths:
        yield task(model.PATHS, path, path=path)
    for path in mounts[:MAX_MOUNTS]:
        yield task(model.MOUNTS, path, path=path)
    if (left_out := len(mounts) - MAX_MOUNTS) > 0:
        reason = {"left_out": f"not checked: at most {MAX_MOUNTS} mounts are"}
        yield model.Task(model.MOUNTS, f"{left_out} more", settings.timeout, reason, is_advisory=True)
    for path in LUSTRE_HEALTH:
        if os.path.exists(path):
            yield task(model.MOUNTS, path, lustre=path)
            break
    for path, needed in settings.space.items():
        yield task(model.SPACE, path, path=path, needed=needed)
    yield task(model.GPU, "all GPUs" if settings.gpus is None else f"{settings.gpus} GPUs", expected=settings.gpus)
    if is_restart and settings.memory_timeout:
        yield task(
            model.GPU_MEMORY,
            "all GPUs",
            settings.memory_timeout + settings.timeout,
            timeout=settings.memory_timeout,
            tolerance_mb=MEMORY_TOLERANCE_MB,
            poll=MEMORY_POLL,
        )
    if settings.node_health:
        yield task(
            model.NODE_HEALTH,
            settings.node_health,
            NODE_HEALTH_TIMEOUT + _STARTUP,
            socket_path=settings.node_health,
            arguments=settings.node_health_arguments,
            timeout=NODE_HEALTH_TIMEOUT,
        )
    for url in dict.fromkeys((*settings.endpoints, *filter(None, (settings.collector,)))):
        yield task(model.COLLECTOR, hide_password(url), url=url, timeout=settings.timeout)
    if url := settings.collector:
        yield task(model.CLOCK, hide_password(url), url=url, allowed=CLOCK_SECONDS, timeout=settings.timeout)
