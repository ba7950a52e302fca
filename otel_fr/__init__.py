"""otel-fr: an OpenTelemetry-native flight recorder for torch.distributed.

Importing it costs nothing: neither torch nor the OpenTelemetry SDK is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from otel_fr._version import __version__

if TYPE_CHECKING:
    from otel_fr import analyze as analyze
    from otel_fr.fault_tolerance.agreement import ReconfigureError
    from otel_fr.fault_tolerance.decisions import decision
    from otel_fr.fault_tolerance.peers import PeerFailedError, PeerFailure
    from otel_fr.fault_tolerance.sections import end_section, heartbeat, section, start_section, step

__all__ = [
    "PeerFailedError",
    "PeerFailure",
    "ReconfigureError",
    "__version__",
    "decision",
    "dump",
    "end_section",
    "heartbeat",
    "instrument",
    "on_peer_failure",
    "reconfigure",
    "section",
    "start_section",
    "step",
    "uninstrument",
]

_LAZY = {
    "PeerFailedError": "otel_fr.fault_tolerance.peers",
    "PeerFailure": "otel_fr.fault_tolerance.peers",
    "ReconfigureError": "otel_fr.fault_tolerance.agreement",
    "decision": "otel_fr.fault_tolerance.decisions",
    "end_section": "otel_fr.fault_tolerance.sections",
    "heartbeat": "otel_fr.fault_tolerance.sections",
    "section": "otel_fr.fault_tolerance.sections",
    "start_section": "otel_fr.fault_tolerance.sections",
    "step": "otel_fr.fault_tolerance.sections",
}
"""Names of this package and the modules that define them, imported when a name is first used."""


def __getattr__(name: str) -> Any:
    import importlib

    if name == "analyze":  # a subpackage, which needs numpy; torch is not imported
        return importlib.import_module("otel_fr.analyze")
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "analyze"})


def instrument() -> None:
    """Record this process's collectives, starting with the next process group that it creates.

    If otel-fr is installed, its entry points call this. Does nothing if called again, if otel-fr is disabled, or if
    neither an OTLP endpoint nor ``OTEL_FR_ENABLED=1`` is set.
    """
    from otel_fr import config
    from otel_fr.capture import hook

    if config.is_enabled():
        hook.install()


def uninstrument() -> None:
    """Stop recording, remove all hooks, and let the rank's monitor finish. Does nothing if not instrumented."""
    from otel_fr.capture import hook

    hook.uninstall()


def dump(reason: str = "request") -> None:
    """Request a flight-recorder file from this rank's monitor. Returns at once; does nothing if not recording.

    Args:
        reason: recorded in the file.
    """
    from otel_fr.capture import hook

    hook.request_dump(reason)


def on_peer_failure(callback: Callable[[PeerFailure], object]) -> Callable[[], None]:
    """Call ``callback`` when the collector reports the failure of a rank that shares a process group with this one.

    A thread of otel-fr calls it with a `PeerFailure`, once for each failure, including failures that are already known.
    otel-fr logs exceptions that the callback raises. A callback that hangs receives no further calls; the others do.

    Returns:
        A function that ends the subscription.

    Raises:
        TypeError: ``callback`` is not a function.
        RuntimeError: 64 callbacks are registered.
    """
    from otel_fr.fault_tolerance.peers import peers

    return peers.subscribe(callback)


def reconfigure(*, timeout: float = 60.0, minimum: int = 1) -> tuple[int, int]:
    """Re-form the default process group from the ranks that call this, and return this process's rank and the size.

    This needs torch 2.14 or later, a group made with ``init_process_group(..., enable_reconfigure=True)``, and a store
    that outlives ranks, such as the store of torchrun's agent. All ranks call it once after ``init_process_group``,
    because such a group cannot be used before. Later, each rank whose collective failed calls it. Ranks that are not
    known to have failed have ten seconds to come. Ranks keep their order and get new numbers. Other process groups
    keep the old ranks: re-create the ones that you use.

    Args:
        timeout: seconds until the members must be agreed on.
        minimum: least number of ranks; the first time all are needed.

    Raises:
        ReconfigureError: the group cannot be re-formed; the text says why. Also raised in a rank that the others left
            out.
    """
    from otel_fr.capture import reconfigure

    return reconfigure.reconfigure(timeout, minimum)
