"""A queue of a backend on a disk that it has filled: it drains by itself, and then takes requests again."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.collector_process import Collector, running
from tests.support.mounts import tmpfs
from tests.support.otlp_backends import Backend, grpc_backend
from tests.support.otlp_messages import spans
from tests.support.waiting import wait_for


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "disk", "size=3m") as folder:
        yield folder


def fill(collector: Collector) -> list[bytes]:
    """Send requests until the disk is full; returns those that were acknowledged."""
    taken: list[bytes] = []
    for size in (100_000, 1_000):  # the small ones take the room that no large one fits into
        for number in range(1, 5_000):
            data = spans(number, size=size)
            if collector.post("/v1/traces", data).status != 200:
                break
            taken.append(data)
        else:
            raise AssertionError("the disk is not full")
    return taken


def is_taken(collector: Collector, data: bytes) -> bool:
    return collector.post("/v1/traces", data).status == 200


def check_drained(collector: Collector, backend: Backend, waiting: list[bytes]) -> None:
    """All that waited has been sent, new requests are taken, and each was sent once."""
    backend.busy = 0
    assert wait_for(lambda: set(waiting) <= set(backend.taken))
    assert wait_for(lambda: collector.metric("otel_fr_collector_forward_queue_requests") == 0)
    after = [spans(number, size=100_000) for number in range(10_001, 10_041)]
    for data in after:
        assert wait_for(functools.partial(is_taken, collector, data))
    assert wait_for(lambda: set(after) <= set(backend.taken))
    assert "requests" not in collector.get("/healthz")
    assert collector.metric("otel_fr_collector_forward_queue_up") == 1
    assert len(backend.taken) == len(set(backend.taken))


def test_a_queue_that_has_filled_its_disk_drains(tmp_path: Path, disk: Path) -> None:
    with grpc_backend() as backend:
        backend.busy = 10**6
        options = ("--data", str(disk / "data"), "--forward", backend.url)
        with running(tmp_path / "run", *options) as collector:
            check_drained(collector, backend, fill(collector))


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_queue_that_has_filled_its_disk_drains_after_a_restart(tmp_path: Path, disk: Path, is_killed: bool) -> None:
    with grpc_backend() as backend:
        backend.busy = 10**6
        options = ("--data", str(disk / "data"), "--forward", backend.url)
        with running(tmp_path / "one", *options) as collector:
            waiting = fill(collector)
            if is_killed:
                collector.kill()
            else:
                collector.stop()
        with running(tmp_path / "two", *options) as collector:
            check_drained(collector, backend, waiting)
