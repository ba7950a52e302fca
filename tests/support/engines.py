"""What the tests of the compiled capture engine need: they skip where it was not built."""

from __future__ import annotations

import importlib.util

import pytest

HAS_RING_WRITER = importlib.util.find_spec("otel_fr.capture.native._ringwriter") is not None

needs_ring_writer = pytest.mark.skipif(
    not HAS_RING_WRITER, reason="the ring writer is not compiled: no C++ compiler was found at installation"
)
