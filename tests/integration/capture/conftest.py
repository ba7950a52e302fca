"""The capture engines that these tests run over."""

from __future__ import annotations

import pytest

from tests.support import engines, single_rank


@pytest.fixture(params=engines.ENGINES)
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The programs of `single_rank` record with this engine; its name."""
    engines.settings(request.param)
    monkeypatch.setattr(single_rank, "ENGINE", request.param)
    name: str = request.param
    return name
