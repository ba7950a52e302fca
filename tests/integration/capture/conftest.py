"""The capture engines that these tests run over, and the processes in which."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import engines, single_rank, warm


@pytest.fixture(params=engines.ENGINES)
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The programs of `single_rank` record with this engine; its name."""
    engines.settings(request.param)
    monkeypatch.setattr(single_rank, "ENGINE", request.param)
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def _warm_ranks() -> Iterator[warm.WarmRanks]:
    with warm.warm_ranks() as ranks:
        yield ranks


@pytest.fixture(name="warm")
def start_warm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of `single_rank` start with torch imported."""
    if not warm.FRESH:
        monkeypatch.setattr(single_rank, "start", request.getfixturevalue("_warm_ranks").run)
