"""The store's thread: what it waits for delays nothing else, and a change is published once it is written."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from otel_fr_collector import timeline
from otel_fr_collector.incidents.incident import FIRING, IncidentChange
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.service import Service
from otel_fr_collector.storage.backend import StoreError
from otel_fr_collector.storage.batch import Batch, FinishedJob
from otel_fr_collector.storage.sqlite_backend import FILE_NAME, SqliteBackend
from otel_fr_collector.storage.store import Store

from tests.support.incident_data import incident_change
from tests.support.stores import sqlite_store
from tests.support.waiting import until, wait_for
from tests.unit.collector.test_isolation import Kept
from tests.unit.collector.test_store import incident


class Held(SqliteBackend):
    """A file on a disk that answers when ``released`` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Metrics())
        self.released = threading.Event()

    def put(self, batch: Batch) -> None:
        self.released.wait(100.0)
        super().put(batch)


class Stopped:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def played(folder: Path) -> tuple[Held, Service, Stopped, list[IncidentChange]]:
    """A service whose store writes when the test lets it, its clock, and what it publishes."""
    backend, clock, outlet = Held(folder), Stopped(), Kept("only")
    metrics = Metrics()
    service = Service(metrics, Outlets(metrics, others=[outlet]), clock=clock, store=Store(backend, metrics))
    return backend, service, clock, outlet.changes


def test_a_change_is_published_once_it_is_written(tmp_path: Path) -> None:
    backend, service, _, published = played(tmp_path)
    change = incident_change()
    service._take_changes([change], 0.0)
    service.step()
    assert published == []
    backend.released.set()
    until(lambda: service.step() and published)
    assert published[0].data == change.data
    assert [one["id"] for one in backend.find(job=None, state=None)] == [change.incident.id]


def test_a_disk_that_hangs_delays_a_change_for_a_moment_and_keeps_the_order(tmp_path: Path) -> None:
    backend, service, clock, published = played(tmp_path)
    changes = [incident_change(number=f"{number:016x}") for number in range(3)]
    began = time.monotonic()
    for change in changes:
        service._take_changes([change], clock.now)
    clock.now += timeline.PUBLISH_PATIENCE
    service.step()
    assert [one.incident.id for one in published] == [one.incident.id for one in changes]
    assert time.monotonic() - began < 50.0, "the service has waited for the disk"
    backend.released.set()


def test_what_is_written_is_the_incident_as_it_was_then(tmp_path: Path) -> None:
    backend = Held(tmp_path)
    store = Store(backend, Metrics())
    one = incident(1, FIRING)
    store.save([one])
    one.state = "resolved"
    backend.released.set()
    assert store.settled(60.0)
    assert [data["state"] for data in store.find(job=None, state=None)] == [FIRING]
    store.close(time.monotonic() + 5.0)


def test_all_that_was_given_is_in_the_file_when_the_store_is_closed(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    for number in range(200):
        store.save([incident(number)])
        store.note("webhook", {f"{number:016x}": "1"})
    store.save_job(FinishedJob("key", "job", 1.0, "{}", b""))
    store.close(time.monotonic() + 60.0)
    again = sqlite_store(tmp_path)
    assert len(again.load(1_000).incidents) == 200
    assert len(again.notes("webhook")) == 200
    assert again.finished_job("key")
    again.close()


def test_a_query_that_fails_says_so_and_damage_is_repaired(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    store.save([incident(1)])
    assert store.settled(60.0)
    (tmp_path / "incidents.db").write_bytes(b"no database" * 1_000)
    (tmp_path / "incidents.db-wal").unlink()
    with pytest.raises(StoreError):
        store.find(job=None, state=None)
    assert wait_for(store.take_new), "what is in memory is saved again"
    store.save([incident(1)])
    assert store.settled(60.0)
    assert len(store.find(job=None, state=None)) == 1
    store.close(time.monotonic() + 5.0)


def test_what_is_known_is_not_restored_again(tmp_path: Path) -> None:
    """A collector that asks the database again, after a time without it, must not post its incidents anew."""
    store = sqlite_store(tmp_path)
    store.save([incident(1, FIRING)])
    assert store.settled(60.0)
    outlet, metrics = Kept("only"), Metrics()
    service = Service(metrics, Outlets(metrics, others=[outlet]), store=store)
    assert service._persistence is not None
    assert [one.id for one in outlet.resumed] == [f"{1:016x}"]
    saved = store.load(10)
    service._persistence.take(saved)
    assert len(outlet.resumed) == len(service.book.known()) == 1
    store.close(time.monotonic() + 5.0)


def test_the_end_does_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    backend = Held(tmp_path)
    store = Store(backend, Metrics())
    store.save([incident(1)])
    store.close(time.monotonic())
    assert not backend.released.is_set()
    assert store.save([incident(2)]).is_done
    backend.released.set()


def test_notes_go_on_in_a_new_file(tmp_path: Path) -> None:
    """Else a receiver would be told again after the next restart."""
    store = sqlite_store(tmp_path, Metrics())
    store.save([incident(1)])
    store.note("webhook", {incident(1).id: "1"})
    assert store.settled(100.0)
    (tmp_path / FILE_NAME).unlink()
    store.save([])
    until(store.take_new)
    store.save([incident(1)])  # as the service does
    store.close(time.monotonic() + 60.0)
    again = sqlite_store(tmp_path, Metrics())
    again.load(10)
    assert again.notes("webhook") == {incident(1).id: "1"}
    again.close()
