"""The process of one check: ``python -m otel_fr.checks.child KIND ARGUMENTS`` prints what it found as JSON."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from otel_fr.checks import model
from otel_fr.checks.model import Outcome, Status

_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


def main(arguments: list[str]) -> None:
    """Run one check.

    Args:
        arguments: kind; what the check takes, as JSON; seconds after which this process ends whatever happens, should
            it outlive the process that started it; the id of that process.
    """
    kind, given, limit, parent = arguments
    _end_with_parent(int(parent))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(limit))
    try:
        outcome = check(kind, json.loads(given))
    except Exception as error:  # noqa: BLE001 - whatever a check raises is what it found
        outcome = Outcome(Status.FAILED, f"the check itself failed: {type(error).__name__}: {error}")
    print(json.dumps([outcome.status.value, outcome.text]), flush=True)


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; that thread waits for this process.

    Raises:
        SystemExit: the process that started it has ended already.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def check(kind: str, given: dict[str, Any]) -> Outcome:
    """Run the check of a kind.

    Raises:
        KeyError: there is no such kind.
        Exception: whatever the check raises.
    """
    return _CHECKS[kind](given)


def _path(given: dict[str, Any]) -> Outcome:
    from otel_fr.checks.storage import check_lustre, check_path

    if "left_out" in given:
        return Outcome(Status.FAILED, given["left_out"])
    return check_lustre((given["lustre"],)) if "lustre" in given else check_path(given["path"])


def _space(given: dict[str, Any]) -> Outcome:
    from otel_fr.checks.space import check_space

    return check_space(**given)


def _gpus(given: dict[str, Any]) -> Outcome:
    from otel_fr.checks.gpu import check_gpus

    return check_gpus(given["expected"])


def _gpu_memory(given: dict[str, Any]) -> Outcome:
    from otel_fr.checks.gpu import check_memory

    return check_memory(**given)


def _node_health(given: dict[str, Any]) -> Outcome:
    from otel_fr.checks.node_health import check_node_health

    return check_node_health(given["socket_path"], tuple(given["arguments"]), given["timeout"])


def _endpoint(given: dict[str, Any]) -> Outcome:
    from otel_fr.checks.collector import check_endpoint

    return check_endpoint(**given)


def _clock(given: dict[str, Any]) -> Outcome:
    from otel_fr.checks.collector import check_clock

    return check_clock(**given)


def _event(given: dict[str, Any]) -> Outcome:
    from otel_fr.checks.event import send

    return send(**given)


def _attribution(given: dict[str, Any]) -> Outcome:
    from otel_fr.checks.advice import find

    return find(**given)


_CHECKS: dict[str, Callable[[dict[str, Any]], Outcome]] = {
    model.PATHS: _path,
    model.MOUNTS: _path,
    model.SPACE: _space,
    model.GPU: _gpus,
    model.GPU_MEMORY: _gpu_memory,
    model.NODE_HEALTH: _node_health,
    model.CLOCK: _clock,
    model.COLLECTOR: _endpoint,
    model.EVENT: _event,
    model.ATTRIBUTION: _attribution,
}


if __name__ == "__main__":
    main(sys.argv[1:])
