"""otel-fr: an OpenTelemetry-native flight recorder for torch.distributed.

Importing it costs nothing: neither torch nor the OpenTelemetry SDK is loaded.
"""

from __future__ import annotations

from otel_fr._version import __version__

__all__ = ["__version__", "dump", "instrument", "uninstrument"]


def instrument() -> None:
    """Record this process's collectives from the next process group it creates.

    Needless where the package's entry points are active (they are after installation); calling it again does nothing.
    Does nothing either unless an OTLP endpoint or ``OTEL_FR_ENABLED=1`` is set and nothing disables otel-fr.
    """
    from otel_fr import config
    from otel_fr.capture import hook

    if config.is_enabled():
        hook.install()


def uninstrument() -> None:
    """Stop recording, remove every hook and let the rank's monitor finish. Does nothing if not instrumented."""
    from otel_fr.capture import hook

    hook.uninstall()


def dump(reason: str = "request") -> None:
    """Ask this rank's monitor to write the flight-recorder file now. Returns at once; does nothing if not recording.

    Args:
        reason: kept in the file.
    """
    from otel_fr.capture import hook

    hook.request_dump(reason)
