"""Fixtures that choose the capture engine and the start of the programs of these tests."""

from __future__ import annotations

import pytest

from tests.support import engines, single_rank, warm


@pytest.fixture(params=engines.EACH_ENGINE)
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the programs of `single_rank` record with each engine. Returns the engine's name."""
    engine: str = request.param
    engines.settings(engine)
    monkeypatch.setattr(single_rank, "ENGINE", engine)
    return engine


@pytest.fixture(name="warm")
def start_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the programs of `single_rank` start with torch imported."""
    if not warm.FRESH:
        monkeypatch.setattr(single_rank, "start", warm.run)
