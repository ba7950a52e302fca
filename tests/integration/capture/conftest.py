"""The capture engines that these tests run over, and the processes in which."""

from __future__ import annotations

import pytest

from tests.support import engines, single_rank, warm


@pytest.fixture(params=engines.EACH_ENGINE)
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The programs of `single_rank` record with this engine; its name."""
    engine: str = request.param
    engines.settings(engine)
    monkeypatch.setattr(single_rank, "ENGINE", engine)
    return engine


@pytest.fixture(name="warm")
def start_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of `single_rank` start with torch imported."""
    if not warm.FRESH:
        monkeypatch.setattr(single_rank, "start", warm.run)
