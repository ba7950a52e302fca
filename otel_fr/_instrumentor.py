"""Entry point of the group ``opentelemetry_instrumentor``: ``opentelemetry-instrument torchrun train.py``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

import otel_fr


class OtelFrInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Enables and disables otel-fr. Does not import torch: the hook is installed when torch.distributed is imported."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """The packages that this instruments."""
        return ["torch >= 2.6"]

    def _instrument(self, **kwargs: Any) -> None:
        otel_fr.instrument()

    def _uninstrument(self, **kwargs: Any) -> None:
        otel_fr.uninstrument()
