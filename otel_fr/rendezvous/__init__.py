"""torchrun's rendezvous handler ``otel-fr`` (entry point group ``torchrun.handlers``): c10d's, with checks of the node.

torch loads the entry point in every process that imports its elastic package, so this module imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BACKEND = "otel-fr"
"""Of ``torchrun --rdzv-backend``."""


def load() -> Callable[[Any], Any]:
    """What torch registers: makes a handler from a `torch.distributed.elastic.rendezvous.RendezvousParameters`."""
    return _create


def _create(parameters: Any) -> Any:
    from otel_fr.rendezvous.handler import create

    return create(parameters)
