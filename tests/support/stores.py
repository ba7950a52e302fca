"""Stores as collectors have them, for tests of what uses one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.sqlite_backend import SqliteBackend
from otel_fr_collector.storage.store import Store


def sqlite_store(
    folder: Path,
    metrics: Metrics | None = None,
    retention: Retention | None = None,
    wall: Callable[[], float] = time.time,
) -> Store:
    """A store whose file is in the folder."""
    metrics = metrics or Metrics()
    return Store(SqliteBackend(folder, metrics, retention, wall), metrics, wall)
