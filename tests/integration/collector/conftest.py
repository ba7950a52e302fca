"""What several files of tests share, because it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that runs. Who ends it starts it again."""
    with postgres_server() as found:
        yield found
