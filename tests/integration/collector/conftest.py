"""Fixtures that take seconds to start, shared by several test files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.collector_process import Collector, running
from tests.support.notified_site import Site
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.staged_collector import Stage
from tests.support.virtual_collector import VirtualCollector
from tests.support.watched_page import Watched


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server. A test that ends it starts it again."""
    with postgres_server() as found:
        yield found


@pytest.fixture(scope="module")
def window(browser: Any) -> Watched:
    return Watched(browser)


@pytest.fixture
def watched(window: Watched) -> Iterator[Watched]:
    with window.used():
        yield window


@pytest.fixture
def page(watched: Watched) -> Any:
    """A watched browser page."""
    return watched.page


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Collector]:
    with running(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with running(tmp_path_factory.mktemp("collector")) as started:
        yield started


@pytest.fixture
def collector() -> Iterator[VirtualCollector]:
    with VirtualCollector() as started:
        yield started


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    one = Site(data=tmp_path / "data")
    with one.collector:
        yield one


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as running_stage:
        yield running_stage
