"""The sections of a process, begun anew by each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_fr.fault_tolerance import open_sections, sections


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sections, "_state", open_sections.State())
    yield
    sections.detach()
