"""torchrun's rendezvous handler ``otel-fr`` (entry point group ``torchrun.handlers``): c10d's handler with node checks.

torch loads the entry point in every process that imports its elastic package, so this module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BACKEND = "otel-fr"
"""Value of ``torchrun --rdzv-backend``."""


def load() -> Callable[[Any], Any]:
    """Return the function that torch registers. It makes a handler from `RendezvousParameters`."""
    return _create


def _create(parameters: Any) -> Any:
    from otel_fr.rendezvous.handler import create

    return create(parameters)
