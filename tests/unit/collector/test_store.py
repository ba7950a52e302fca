"""The incidents' file: retention, schema versions, and that what is read back is what was written."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otel_fr_collector.incidents.incident import FIRING, RESOLVED, Incident
from otel_fr_collector.jobs.ranks import DESTROYED, RankState
from otel_fr_collector.jobs.ras import RasAnswer
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.serialization import dump_incident, dump_run, load_incident, load_run

from otel_fr.incident import StateName
from otel_fr.match import Category, Ending, Finding, Group, Place, ThreadException
from tests.support.evidence import finding
from tests.support.stores import DirectSqlite

RUN = RunId("job-7", 1, "0123456789abcdef")
NOW = 1_800_000_000.0


def incident(
    number: int, state: StateName = RESOLVED, changed: float = NOW, text: str = "rank 1 did not join"
) -> Incident:
    found = finding(key="g/collective/5", group=None, waiting_ranks=(0,), summary=text)
    made = Incident(f"{number:016x}", RUN, found, [found.key], None, 0.0, changed, None, changed, state=state)
    made.resolved = changed if state == RESOLVED else None
    made.data = made.as_data()
    return made


def numbers(store: DirectSqlite) -> list[int]:
    return [int(str(data["id"]), 16) for data in store.find(job=None, state=None)]


def test_the_consequences_of_an_old_incident_are_found_among_any_number_of_later_ones(tmp_path: Path) -> None:
    store = DirectSqlite(tmp_path, Metrics(), wall=lambda: NOW)
    cause, consequence = incident(1), incident(2)
    consequence.cause = cause.id
    store.save([cause, consequence])
    store.save([incident(n, changed=NOW + n) for n in range(3, 1_003)])
    assert store.count_consequences([cause.data]) == [1]
    assert store.consequences(cause.data) == [consequence.id]
    store.close()


def test_a_damaged_note_is_left_out(tmp_path: Path) -> None:
    store = DirectSqlite(tmp_path, Metrics(), wall=lambda: NOW)
    store.save([incident(10), incident(11)])
    one, other = f"{10:016x}", f"{11:016x}"
    store.note("webhook", {one: "1", other: "1"})
    store.close()
    with contextlib.closing(sqlite3.connect(store.path)) as file, file:
        file.execute("UPDATE notes SET value = x'ff' WHERE incident = ?", (one,))
    again = DirectSqlite(tmp_path, Metrics(), wall=lambda: NOW)
    assert again.load(10).notes == {("webhook", other): "1"}
    again.close()


def test_the_oldest_resolved_incidents_go_when_the_file_is_too_large(tmp_path: Path) -> None:
    store = DirectSqlite(tmp_path, Metrics(), Retention(size=2 << 20), wall=lambda: NOW)
    store.save([incident(0, FIRING, NOW - 9_000)])
    store.save([incident(n, changed=NOW - 2_000 + n, text="x" * 4_000) for n in range(1, 1_001)])
    assert store.path.stat().st_size + _wal(store) > 4 << 20
    store.prune()
    left = numbers(store)
    assert left[0] == 0
    assert left[1] > 1
    assert left[-1] == 1_000
    assert left[1:] == list(range(left[1], 1_001))  # the youngest, none left out
    store.close()
    assert store.path.stat().st_size < 2.5 * (1 << 20)  # the space is given back to the disk


def _wal(store: DirectSqlite) -> int:
    wal = store.path.with_name(store.path.name + "-wal")
    return wal.stat().st_size if wal.exists() else 0


def test_damage_that_shows_while_it_runs_loses_nothing_that_is_held(tmp_path: Path) -> None:
    store = DirectSqlite(tmp_path, Metrics())
    store.save(incident(n, text="x" * 4_000) for n in range(4, 1_000))  # more than SQLite keeps in its own memory
    store.close()
    store = DirectSqlite(tmp_path, Metrics())
    pages = bytearray(store.path.read_bytes())
    pages[4_096:] = b"\x5a" * (len(pages) - 4_096)
    store.path.write_bytes(pages)
    with pytest.raises(sqlite3.DatabaseError) as damage:
        numbers(store)
    store.broken(damage.value)
    assert store.take_new()  # so the service saves again what it holds
    assert not store.take_new()
    store.save([incident(2), incident(3, FIRING)])
    assert store.is_up
    assert numbers(store) == [2, 3]
    assert len(list(tmp_path.glob("incidents.db.damaged-*"))) >= 1
    store.close()


def test_an_incident_of_another_form_is_left_out_of_what_the_api_lists(tmp_path: Path) -> None:
    """And one that an older version wrote, without a key that came later, is listed as if the key were null."""
    store = DirectSqlite(tmp_path, Metrics(), wall=lambda: NOW)
    store.save([incident(1), incident(2), incident(3)])
    older = {key: value for key, value in incident(2).data.items() if key != "stuck_on"}
    with contextlib.closing(sqlite3.connect(store.path)) as db, db:
        for number, data in ((1, {"id": 1}), (2, older)):
            db.execute("UPDATE incidents SET data = ? WHERE id = ?", (json.dumps(data), f"{number:016x}"))
    assert numbers(store) == [2, 3]
    assert store.get(f"{1:016x}") is None
    found = store.get(f"{2:016x}")
    assert found == incident(2).data
    store.close()


@pytest.mark.parametrize("memory", ["[]", "{", '{"id": 1}'])
def test_an_open_incident_that_cannot_be_loaded_is_not_listed_as_firing_for_ever(tmp_path: Path, memory: str) -> None:
    """And a resolved one stays listed: nothing more can happen to it."""
    metrics = Metrics()
    store = DirectSqlite(tmp_path, metrics, wall=lambda: NOW)
    store.save([incident(1, FIRING), incident(2, FIRING), incident(3)])
    with contextlib.closing(sqlite3.connect(store.path)) as db, db:
        for number in (1, 3):
            db.execute("UPDATE incidents SET memory = ? WHERE id = ?", (memory, f"{number:016x}"))
    assert numbers(store) == [2, 3]
    assert store.get(f"{1:016x}") is None
    assert store.get(f"{2:016x}") == incident(2, FIRING).data
    assert store.get(f"{3:016x}") == incident(3).data
    assert metrics.errors.labels("store")._value.get() == 2
    store.save([incident(1, FIRING)])  # it is detected again
    assert sorted(numbers(store)) == [1, 2, 3]
    store.close()


texts = st.text(st.characters(codec="utf-8"), max_size=20)
ranks = st.integers(0, 10_000)
by_rank = st.dictionaries(ranks, texts, max_size=3)
places = st.builds(Place, texts, st.none() | ranks, st.none() | ranks, texts, texts, texts, texts)
findings = st.builds(
    Finding,
    key=texts,
    category=st.sampled_from(Category),
    group=st.none() | st.builds(Group, texts, texts, texts, st.lists(ranks, max_size=3).map(tuple)),
    operation=texts,
    sequence_id=st.none() | ranks,
    stream=st.sampled_from(["collective", "p2p", "monitored_barrier"]),
    culprit_ranks=st.lists(ranks, max_size=3).map(tuple),
    waiting_ranks=st.lists(ranks, max_size=3).map(tuple),
    summary=texts,
    field=st.none() | texts,
    values=by_rank,
    call_sites=by_rank,
    stacks=by_rank,
    caused_by=st.none() | texts,
    age=st.none() | st.floats(0, 1e6),
    p2p=st.none() | st.tuples(ranks, ranks, ranks, ranks),
    is_waiting=st.booleans(),
    places=st.dictionaries(ranks, places, max_size=3),
    details=st.lists(texts, max_size=3).map(tuple),
)


@given(findings, by_rank, st.none() | st.floats(0, 2e9), st.booleans())
def test_an_incident_is_read_back_as_it_was_written(
    finding: Finding, files: dict[int, str], started: float | None, is_open: bool
) -> None:
    made = Incident("ab" * 8, RUN, finding, [finding.key], None, 0.0, NOW, started, NOW, files=files)
    if not is_open:
        made.state, made.resolved = RESOLVED, NOW
    made.take_labels()
    made.note_wait(NOW)
    made.data = made.as_data()
    for ras in (None, RasAnswer(NOW, "2.28.9", (finding.summary, "rank 3 did not answer"))):
        made.ras = ras
        made.data = made.as_data()
        assert load_incident(json.loads(json.dumps(dump_incident(made))), made.data) == made


@given(
    st.sampled_from(Ending),
    texts,
    places,
    st.none() | ranks,
    st.dictionaries(texts, st.tuples(ranks, ranks, st.sampled_from([0, DESTROYED]), st.just(0), st.just(-1)).map(list)),
)
def test_a_rank_that_ended_is_read_back_as_it_was_written(
    ending: Ending, text: str, place: Place, number: int | None, progress: dict[str, list[int]]
) -> None:
    run = Run(RUN, 0.0, 0.0, world_size=2, resource={"service.name": text})
    state = RankState(
        1,
        arrived=50.0,
        ended=50.0,
        ending=ending,
        place=place,
        exception=text,
        signal=number,
        exit_message=text,
    )
    state.progress, state.stack, state.stack_moves = progress, text, 7
    state.thread_exceptions = (ThreadException(text, text, text), ThreadException("loader", "ValueError"))
    run.ranks = {0: RankState(0), 1: state}
    written = json.loads(json.dumps(dump_run(run, 50.0, NOW)))
    saved = load_run(written)
    assert (saved.id, saved.world_size, saved.resource) == (run.id, 2, run.resource)
    assert saved.ranks(50.0, NOW) == [state]
    del written["ranks"][0]["place"][6:]  # as earlier versions wrote it
    assert load_run(written).ranks(50.0, NOW)[0].place == place._replace(namespace="")
