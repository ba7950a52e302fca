"""The programs around otel-fr that several of these tests need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jaeger import Jaeger, running_jaeger


@pytest.fixture
def jaeger(tmp_path: Path) -> Iterator[Jaeger]:
    with running_jaeger(tmp_path, Path(__file__).with_name("jaeger.yaml")) as started:
        yield started
