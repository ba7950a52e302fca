"""The capture engines that these tests run over, and the processes in which."""

from __future__ import annotations

import pytest

from tests.support import engines, single_rank, warm
from tests.support.long_tests import all_but


def _record_with(engine: str, monkeypatch: pytest.MonkeyPatch) -> str:
    engines.settings(engine)
    monkeypatch.setattr(single_rank, "ENGINE", engine)
    return engine


@pytest.fixture(params=engines.ENGINES)
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The programs of `single_rank` record with this engine; its name."""
    return _record_with(request.param, monkeypatch)


@pytest.fixture(params=all_but(("compiled",), engines.ENGINES))
def mostly_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As `each_engine`, for tests that take long: `make test` runs the compiled one only."""
    return _record_with(request.param, monkeypatch)


@pytest.fixture(name="warm")
def start_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of `single_rank` start with torch imported."""
    if not warm.FRESH:
        monkeypatch.setattr(single_rank, "start", warm.run)
