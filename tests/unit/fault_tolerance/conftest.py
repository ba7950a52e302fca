"""A recording of this process, whose sections begin anew in each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_fr.fault_tolerance import open_sections, sections
from otel_fr.ring import ActivityReader, RingReader, RingWriter


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sections, "_state", open_sections.State())
    yield
    sections.detach()


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingWriter]:
    """A ring into which nothing is written yet."""
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    yield writer
    sections.detach()
    writer.close()


@pytest.fixture
def reader(ring: RingWriter) -> Iterator[ActivityReader]:
    """The recording."""
    sections.attach(ring.activity)
    with RingReader.open(ring.path) as opened:
        assert opened.activity is not None
        yield opened.activity
