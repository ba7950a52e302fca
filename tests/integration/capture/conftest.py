"""The capture engines that these tests run over, and the processes in which."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import engines, single_rank
from tests.support.warm_rank import WarmRanks, warm_ranks


@pytest.fixture(params=engines.ENGINES)
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The programs of `single_rank` record with this engine; its name."""
    engines.settings(request.param)
    monkeypatch.setattr(single_rank, "ENGINE", request.param)
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def _warm_ranks() -> Iterator[WarmRanks]:
    with warm_ranks() as ranks:
        yield ranks


@pytest.fixture
def warm(_warm_ranks: WarmRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of `single_rank` start with torch imported."""
    monkeypatch.setattr(single_rank, "start", _warm_ranks.run)
