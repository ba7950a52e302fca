"""A recording of this process without a process group, for trainers with one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_fr.fault_tolerance import open_sections, sections
from otel_fr.ring import ActivityReader, RingReader, RingWriter


@pytest.fixture
def activity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ActivityReader]:
    monkeypatch.setattr(sections, "_state", open_sections.State())
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    sections.attach(writer.activity)
    with RingReader.open(writer.path) as reader:
        found = reader.activity
        assert found is not None
        yield found
        sections.detach()
