"""The process of one check: ``python -m otel_fr.checks.child KIND LIMIT PARENT`` prints what it found as JSON."""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import sys
from typing import Any, Final

from otel_fr.checks import model
from otel_fr.checks.model import Outcome, Status
from otel_fr.helper_process import end_with


def main(arguments: list[str]) -> None:
    """Run one check. Its arguments are in `model.ARGUMENTS_VARIABLE`.

    Args:
        arguments: the kind; seconds after which this process ends itself in any case; the parent's process id.
    """
    kind, limit, parent = arguments
    if not end_with(int(parent)):  # requires that the starting thread waits for this process
        sys.exit(1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(limit))
    try:
        outcome = check(kind, json.loads(os.environ.pop(model.ARGUMENTS_VARIABLE)))
    except Exception as error:  # noqa: BLE001 - an exception of a check is its result
        outcome = Outcome(Status.FAILED, f"the check itself failed: {type(error).__name__}: {error}")
    print(json.dumps([outcome.status.value, outcome.text]), flush=True)


_CHECKS: Final = {
    model.PATHS: "storage.check_path",
    model.MOUNTS: "storage.check_path",
    model.SPACE: "storage.check_space",
    model.GPU: "gpu.check_gpus",
    model.GPU_MEMORY: "gpu.check_memory",
    model.NODE_HEALTH: "node_health.check_node_health",
    model.CLOCK: "collector.check_clock",
    model.COLLECTOR: "collector.check_endpoint",
    model.EVENT: "event.send",
    model.ATTRIBUTION: "advice.find",
}
"""The function of each kind. Only its module is imported, so that the process starts fast."""


def check(kind: str, given: dict[str, Any]) -> Outcome:
    """Run the check of a kind.

    Raises:
        KeyError: there is no such kind.
        Exception: whatever the check raises.
    """
    if "left_out" in given:
        return Outcome(Status.FAILED, given["left_out"])
    name = "storage.check_lustre" if "lustre" in given else _CHECKS[kind]
    found: Outcome = pkgutil.resolve_name(f"otel_fr.checks.{name}")(**given)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
