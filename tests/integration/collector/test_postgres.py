"""A real PostgreSQL server that is killed, stopped, away at the start, or shared. Nothing is lost, nothing waits."""

from __future__ import annotations

import os
import random
import signal
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from otel_fr_collector.incidents.incident import FIRING, RESOLVED, ChangeKind
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage import postgres_backend, postgres_connection, postgres_migrations
from otel_fr_collector.storage.backend import StoreError
from otel_fr_collector.storage.opening import collector_id, open_store
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.store import Store

from tests.support.collector_process import patched, start
from tests.support.commands import otel_fr
from tests.support.played_job import Job
from tests.support.postgres import PASSWORD, PostgresServer, postgres_server
from tests.support.stores import DirectPostgres
from tests.support.waiting import PATIENCE, until, wait_for
from tests.unit.collector.test_store import NOW, incident

IMPATIENT = patched(storage__postgres_backend__RETRY=0.2)
OPENED, OVER = (incident(1).mark(kind) for kind in (ChangeKind.OPENED, ChangeKind.RESOLVED))


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    yield postgres
    if not postgres.answers():
        postgres.start()


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.new_database()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the store try a server that was away with its next attempt."""
    monkeypatch.setattr(postgres_backend, "RETRY", 0.05)


def opened(url: str, name: str = "one") -> Store:
    """Open the store of a collector with that id."""
    metrics = Metrics()
    backend = DirectPostgres(url, name, metrics)
    return Store(backend, metrics)


def kept(url: str) -> dict[str, str]:
    """Return the states of the incidents in the database, by id."""
    with psycopg.connect(url) as db:
        return dict(db.execute("SELECT id, state FROM otel_fr.incidents").fetchall())


def moved(url: str, count: int) -> bool:
    return len(kept(url)) == count


def test_a_server_that_is_killed_while_it_is_written_loses_nothing(server: PostgresServer, url: str) -> None:
    store = opened(url)
    slowest = 0.0
    for number in range(300):
        if number == 100:
            server.kill()
        if number == 200:
            server.start()
        began = time.thread_time()
        store.save([incident(number, FIRING)])
        store.save([incident(number, RESOLVED)])
        slowest = max(slowest, time.thread_time() - began)
        time.sleep(0.002)  # so that there are many writes before, during and after the outage
    assert wait_for(lambda: moved(url, 300))
    assert wait_for(lambda: store.settled(1.0))
    assert set(kept(url).values()) == {RESOLVED}
    assert slowest < 0.5
    store.close(time.monotonic() + 5.0)


def test_a_server_that_is_away_at_the_start_is_read_later(server: PostgresServer, url: str) -> None:
    store = opened(url)
    store.save([incident(1, FIRING)])
    store.note("hook", {f"{1:016x}": "1"})
    assert store.settled(60.0)
    store.close(time.monotonic() + 5.0)
    server.kill()
    again = opened(url)
    assert again.load(10).incidents == []
    assert again.problem
    assert again.take_late() is None
    server.start()
    assert [(one.id, one.state) for one in until(again.take_late).incidents] == [(f"{1:016x}", FIRING)]
    assert again.notes("hook") == {f"{1:016x}": "1"}
    again.close(time.monotonic() + 5.0)


def test_a_server_that_does_not_answer_delays_nothing_but_its_own_rows(
    server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are stopped, so connections stay open, but no answer comes."""
    store = opened(url)
    store.save([incident(1)])
    assert store.settled(60.0)
    monkeypatch.setattr(postgres_connection, "ANSWER_SECONDS", 0.3)
    server.send(signal.SIGSTOP)
    try:
        began = time.thread_time()
        store.save([incident(2)])
        assert time.thread_time() - began < 0.5
        with pytest.raises(StoreError):
            store.find(job=None, state=None)
        assert wait_for(lambda: store.problem)
    finally:
        server.send(signal.SIGCONT)
    monkeypatch.setattr(postgres_connection, "ANSWER_SECONDS", PATIENCE)
    assert wait_for(lambda: moved(url, 2))
    assert wait_for(lambda: store.settled(1.0))
    assert len(store.find(job=None, state=None)) == 2
    store.close(time.monotonic() + 5.0)


def test_a_full_disk_of_the_server_loses_nothing() -> None:
    """The tables are on a file system of 4 MB, which becomes larger later. No other test uses this server."""
    with postgres_server() as server, server.on_tmpfs("size=4m") as (url, folder):
        store = opened(url)
        source = random.Random(1)
        texts = ["".join(source.choices(string.ascii_letters, k=60_000)) for _ in range(60)]
        for number, text in enumerate(texts):
            store.save([incident(number, FIRING, text=text)])
            store.settled(1.0)
        assert wait_for(lambda: "No space left" in store.problem)
        assert 0 < len(kept(url)) < 60
        subprocess.run(["mount", "-o", "remount,size=128m", str(folder)], check=True)
        assert wait_for(lambda: moved(url, 60))
        assert wait_for(lambda: store.settled(1.0))
        store.close(time.monotonic() + 5.0)


def test_collectors_that_start_at_once_make_the_tables_once(url: str) -> None:
    barrier = threading.Barrier(8)

    def start(number: int) -> bool:
        barrier.wait()
        backend = DirectPostgres(url, f"collector {number}", Metrics())
        is_up = backend.is_up
        backend.save([incident(number)])
        backend.close()
        return is_up

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(start, range(8)))
    with psycopg.connect(url) as db:
        assert db.execute("SELECT number FROM otel_fr.version").fetchall() == [(len(postgres_migrations.MIGRATIONS),)]


def test_a_row_that_the_server_never_takes_costs_only_itself(url: str) -> None:
    """Clients choose names, and one name is too long for an index."""
    store = opened(url)
    long = incident(2)
    source = "".join(map(chr, range(0x100, 0x3000)))
    long.run = RunId(source, 0, "run")
    store.save([incident(1), long, incident(3)])
    assert store.settled(60.0)
    assert sorted(int(number, 16) for number in kept(url)) == [1, 3]
    store.close(time.monotonic() + 5.0)


def test_of_two_collectors_that_write_an_incident_the_newer_change_stands(url: str) -> None:
    first, second = (DirectPostgres(url, name, Metrics()) for name in ("first", "second"))
    first.save([incident(1, FIRING, changed=NOW)])
    assert second.load(10).incidents == [], "each loads its own"
    assert [one["state"] for one in second.find(job=None, state=None)] == [FIRING], "and shows all"
    second.save([incident(1, RESOLVED, changed=NOW + 1), incident(2)])
    first.save([incident(1, FIRING, changed=NOW + 0.5)])
    assert kept(url) == {f"{1:016x}": RESOLVED, f"{2:016x}": RESOLVED}
    assert len(second.load(10).incidents) == 2
    second.save([incident(1, FIRING, changed=NOW - 60.0)])
    assert kept(url)[f"{1:016x}"] == FIRING, "its clock was set back"
    first.close()
    second.close()


def test_one_collector_at_a_time_tells_a_receiver_and_the_other_knows_what_it_has_told(url: str) -> None:
    first, second = opened(url, "first"), opened(url, "second")
    began, release = threading.Event(), threading.Event()

    def tell(*, is_told: bool) -> None:
        with first.turn("hook", "incident", OPENED) as turn:
            began.set()
            release.wait(60.0)
            turn.is_told = is_told

    for is_told in (False, True):
        began.clear()
        release.clear()
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(tell, is_told=is_told)
            assert began.wait(60.0)
            threading.Timer(0.2, release.set).start()
            with second.turn("hook", "incident", OPENED) as turn:
                assert release.is_set()
                assert turn.is_told is is_told
            told.result(60.0)
    with second.turn("hook", "incident", OVER) as turn:
        assert not turn.is_told
    first.close()
    second.close()


def test_what_a_collector_was_telling_when_it_was_killed_is_told_by_another(server: PostgresServer, url: str) -> None:
    """The killed collector's turn ends with its connection."""
    store = opened(url)
    killed = psycopg.connect(url)
    killed.execute("INSERT INTO otel_fr.notes VALUES ('hook', 'incident', %s)", (OPENED,))
    threading.Timer(0.2, killed.close).start()
    with store.turn("hook", "incident", OPENED) as turn:
        assert killed.closed
        assert not turn.is_told
    server.kill()
    with store.turn("hook", "incident", OVER) as turn:
        assert not turn.is_told, "without the database, each collector tells"
    store.close()


def test_rows_that_waited_replace_no_newer_ones(server: PostgresServer, url: str) -> None:
    """Another collector has continued with the run meanwhile, and ended."""
    first = DirectPostgres(url, "first", Metrics())
    first.save([incident(1, FIRING, changed=NOW)])
    server.kill()
    first.save([incident(1, FIRING, changed=NOW + 1), incident(2, FIRING, changed=NOW + 1)])
    server.start()
    second = DirectPostgres(url, "second", Metrics())
    second.save([incident(1, RESOLVED, changed=NOW + 2)])
    second.close()
    first.step(float("inf"))
    assert kept(url) == {f"{1:016x}": RESOLVED, f"{2:016x}": FIRING}
    first.close()


def test_the_id_of_a_collector_is_the_same_after_a_restart_and_no_other_has_it(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    assert collector_id(one) == collector_id(one) != collector_id(other)
    assert collector_id(None) != collector_id(None)
    (one / "collector-id").write_text("damaged")
    assert len(collector_id(one)) == 32
    for name in ("collector-id", "collector-id.unfinished"):
        (one / name).unlink(missing_ok=True)
        os.mkfifo(one / name)
    assert collector_id(one) == collector_id(one)


def test_without_the_packages_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "otel_fr_collector.storage.postgres_backend", None)
    with pytest.raises(ValueError, match=r"otel-fr\[collector,postgresql\]"):
        open_store(None, "postgresql://server/database", Metrics(), Retention())


def test_a_collector_works_while_the_server_is_away_and_never_shows_the_password(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "url"
    file.write_text(url + "\n")
    server.kill()
    with start(tmp_path, 1, "--store", str(file), program=IMPATIENT) as first, Job(first, 2) as job:
        job.hang(1)
        opened = first.wait_cause()
        assert "degraded" in first.get("/healthz")
        assert first.metric("otel_fr_collector_store_up") == 0
        server.start()
        assert wait_for(lambda: first.metric("otel_fr_collector_store_up") == 1)
        assert wait_for(lambda: kept(url) == {opened["id"]: FIRING})
        said = first.err_file.read_text() + first.out_file.read_text() + first.get("/metrics")
        command = Path(f"/proc/{first.process.pid}/cmdline").read_text()
    checked = otel_fr("collector", "--check", "--store", url)
    assert checked.returncode == 0
    wrong = otel_fr("collector", "--check", "--store", url.replace("postgresql:", "mysql:"))
    assert wrong.returncode == 2
    said += command + checked.stdout + checked.stderr + wrong.stdout + wrong.stderr
    assert "cannot write postgresql://" in said
    assert PASSWORD not in said
    assert quote(PASSWORD, safe="") not in said
