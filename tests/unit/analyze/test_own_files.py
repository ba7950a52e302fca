"""otel-fr's own files: what the ranks' rings held is what is judged."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr import identity
from otel_fr.analyze import FAULT, HEALTHY, Analysis, load
from otel_fr.analyze.output.text import to_json, to_text
from otel_fr.dumps.write import write_dump
from otel_fr.incident import FIELDS
from otel_fr.match import Case, Ending, ThreadException
from otel_fr.ring import KIND_GROUP, NewGroup, RecordState
from tests.support.rings import RUN, RankRing, signature
from tests.support.verdicts import cause_incidents

Format = Literal["pickle", "json"]
STEP = signature("all_reduce", reduce_op="sum")
SITE = (("/job/train.py", 10, "load_batch"),)
STACK = """Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 5 in wait
  File "/job/data.py", line 31 in next_batch
  File "/job/train.py", line 10 in load_batch
"""


def judged(
    folder: Path, world: int, play: Callable[[RankRing], dict[str, Any] | None], fmt: Format = "pickle", **meta: Any
) -> Analysis:
    """The files of ranks that do this with their rings. What it returns is said of the rank (`RankRing.write`)."""
    for rank in range(world):
        ring = RankRing(folder / "rings", rank, world, **meta)
        said = play(ring) or {}
        ring.write(folder / "files", fmt, **said)
    return load(folder / "files")


def hang(folder: Path, fmt: Format = "pickle") -> Analysis:
    """Rank 1 stands in its data loader; the others wait in step 3."""

    def play(ring: RankRing) -> dict[str, Any]:
        for _ in range(2):
            ring.call(STEP, age_s=30)
        if ring.rank != 1:
            ring.call(STEP, state=RecordState.IN_FLIGHT, age_s=8)
        return {"stack": STACK if ring.rank == 1 else ""}

    return judged(folder, 4, play, fmt)


@pytest.mark.parametrize("fmt", ["pickle", "json"])
def test_the_rank_that_did_not_join_is_named_with_its_line_of_code(tmp_path: Path, fmt: Format) -> None:
    report = hang(tmp_path, fmt)
    found = json.loads(to_json(report))
    (incident,) = found["incidents"]
    assert tuple(incident) == FIELDS
    group = identity.group_id("0", range(4))
    assert incident["category"] in ("missing_rank", "rank_stuck")
    assert (incident["culprit_ranks"], incident["waiting_ranks"]) == ([1], [0, 2, 3])
    assert (incident["operation"], incident["sequence_id"]) == ("all_reduce", 3)
    assert incident["process_group"] == {"id": group, "name": "0", "description": "default_pg", "ranks": [0, 1, 2, 3]}
    assert incident["call_sites"]["1"] == "/job/data.py:31 next_batch"
    assert incident["call_sites"]["0"] == "/job/train.py:42 step"
    assert incident["stacks"] == {"1": STACK}
    assert (incident["job"], incident["attempt"]) == ("job-7", 0)
    assert incident["trace_id"] == identity.trace_id(RUN, group, "collective", 3).hex()
    assert [file["rank"] for file in found["files"]] == [0, 1, 2, 3]
    assert found["problems"] == []

    text = to_text(report)
    assert text.splitlines()[0] == f"{incident['category']}: {incident['summary']} for 8.0 s"
    assert [line.strip() for line in text.splitlines()[1:]][: len(incident["details"])] == incident["details"]
    place = incident["places"]["1"]
    assert (place["host"], place["local_rank"], place["gpu"], place["pod"]) == ("node-1", 1, None, None)
    culprit = f"culprit rank 1: /job/data.py:31 next_batch (node-1, local rank 1, pid {place['pid']})"
    assert culprit in text
    assert "waiting ranks 0, 2, 3: /job/train.py:42 step" in text
    assert "next_batch" in text.partition("stack of rank 1:")[2]
    assert str(tmp_path / "files" / "trace_1") in text


@pytest.mark.parametrize("says_so", [True, False])
def test_a_rank_that_records_no_creations_has_not_left_one_out(tmp_path: Path, says_so: bool) -> None:
    """Ranks 0 and 1 create a group; rank 2 may be one of an earlier otel-fr."""
    new = signature("new_group", (), new_group=NewGroup("1", "tp", (0, 1, 2)))
    for rank in range(3):
        ring = RankRing(tmp_path / "rings", rank, 3, **({"creations": True} if rank < 2 or says_so else {}))
        ring.call(STEP, age_s=30)
        if rank < 2:
            ring.call(new, kind=KIND_GROUP, state=RecordState.IN_FLIGHT, age_s=8)
        ring.write(tmp_path / "files")
    found = [incident["culprit_ranks"] for incident in load(tmp_path / "files").incidents]
    assert found == ([[2]] if says_so else [])


DESTROY = signature("destroy_process_group", ())
CLOSE = (("/job/save.py", 9, "close"),)


@pytest.mark.parametrize("destroyers", [(0,), (0, 1), (0, 1, 2)])
def test_groups_that_are_destroyed_by_some_ranks_are_no_fault_and_no_last_call(
    tmp_path: Path, destroyers: tuple[int, ...]
) -> None:
    def play(ring: RankRing) -> None:
        ring.call(STEP, age_s=30)
        if ring.rank in destroyers:
            ring.call(DESTROY, kind=KIND_GROUP, age_s=8, took_s=0.1)

    report = judged(tmp_path, 3, play, creations=True)
    assert (report.status, report.incidents) == (HEALTHY, [])
    assert report.run is not None
    assert {call.signature.operation for call in Case(report.run.evidence).evidence.calls} == {"all_reduce"}
    (found,) = [one for one in report.collectives if one.operation == "destroy_process_group"]
    assert (found.missing_ranks, found.completed, tuple(found.calls)) == ((), True, destroyers)


def test_a_rank_that_hangs_while_it_destroys_its_group_is_told(tmp_path: Path) -> None:
    def play(ring: RankRing) -> None:
        ring.call(STEP, age_s=30)
        if ring.rank == 1:
            ring.call(DESTROY, kind=KIND_GROUP, age_s=20, state=RecordState.IN_FLIGHT)

    text = to_text(judged(tmp_path, 3, play, creations=True))
    assert "undecided: 1 call in flight on rank 1; the oldest is destroy_process_group of group default_pg (0)" in text


@pytest.mark.parametrize("gone", [True, False])
def test_peers_wait_in_a_group_that_a_rank_has_destroyed(tmp_path: Path, gone: bool) -> None:
    def play(ring: RankRing) -> None:
        ring.group("1", range(3), "tp")
        ring.call(STEP, age_s=30, group="1")
        if ring.rank == 1:
            state = RecordState.COMPLETED if gone else RecordState.IN_FLIGHT
            ring.call(DESTROY, kind=KIND_GROUP, age_s=20, group="1", state=state, site=CLOSE)
            if gone:
                ring.remove_group("1")
        else:
            ring.call(STEP, age_s=19, group="1", state=RecordState.IN_FLIGHT)

    (incident,) = judged(tmp_path, 3, play, creations=True).incidents
    assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [1])
    assert ("destroy_process_group at /job/save.py:9 close" if gone else "group tp (1)") in incident["summary"]


@pytest.mark.parametrize(("age", "status"), [(0.01, HEALTHY), (60.0, FAULT)])
def test_a_call_that_all_have_joined_is_a_fault_once_it_is_old(tmp_path: Path, age: float, status: int) -> None:
    def play(ring: RankRing) -> None:
        ring.call(STEP, age_s=age, state=RecordState.IN_FLIGHT)

    assert judged(tmp_path, 2, play).status == status


def test_the_incident_is_the_same_one_however_often_it_is_analyzed(tmp_path: Path) -> None:
    report = hang(tmp_path)
    assert report.incidents[0]["id"] == load(tmp_path / "files").incidents[0]["id"]


def test_the_newest_attempt_is_judged_and_the_others_are_named(tmp_path: Path) -> None:
    hang(tmp_path)
    for rank in range(2):
        ring = RankRing(tmp_path / "rings2", rank, 2, attempt=1, run_id=identity.run_id("job-7", 1, "x"))
        ring.call(STEP)
        write_dump(tmp_path / "files" / "attempt1" / f"trace_{rank}", ring.snapshot())
    report = load(tmp_path / "files")
    assert report.findings == []
    assert report.run is not None
    assert report.run.attempt == 1
    assert [other.attempt for other in report.others] == [0]
    assert "job-7 attempt 0, 4 files" in to_text(report)


def test_the_exceptions_of_threads_are_in_a_ranks_file_and_do_not_end_it(tmp_path: Path) -> None:
    ring = RankRing(tmp_path / "ring", rank=0, world_size=1)
    ring.writer.add_thread_exception({"type": "OSError", "message": "disk", "site": "io.py:3 g", "thread": "loader"})
    report = load(ring.write(tmp_path))
    assert report.ranks[0].thread_exceptions == (ThreadException("loader", "OSError: disk", "io.py:3 g"),)
    assert (report.ranks[0].ending, report.incidents) == (Ending.RUNNING, [])


def ended(code: int = 0, signal: int = 0, *, clean: bool = False, known: bool = True) -> dict[str, Any]:
    return {"exit": {"code": code, "signal": signal, "clean": clean, "known": known}}


RAISED = {"exception": {"type": "ValueError"}}


@pytest.mark.parametrize(
    ("info", "ending", "exception"),
    [
        (ended(signal=9), Ending.KILLED, ""),
        (ended(code=3), Ending.RAISED, ""),
        (ended(clean=True, known=False), Ending.CLEAN, ""),
        (ended(known=False), Ending.GONE, ""),
        ({"exception": {"type": "ValueError", "message": "bad sample"}}, Ending.RAISED, "ValueError: bad sample"),
        (RAISED | ended(clean=True), Ending.CLEAN, ""),
        (RAISED | ended(signal=15), Ending.RAISED, "ValueError"),
        ({"exception": {"type": "KeyboardInterrupt"}} | ended(signal=2), Ending.KILLED, "KeyboardInterrupt"),
        ({"thread_exceptions": [{"type": "ValueError", "thread": "loader"}]}, Ending.RUNNING, ""),
        ({}, Ending.RUNNING, ""),
    ],
)
def test_how_a_rank_ended_is_known(tmp_path: Path, info: dict[str, Any], ending: Ending, exception: str) -> None:
    ring = RankRing(tmp_path / "rings", 0, 1)
    ring.call(STEP)
    report = load(ring.write(tmp_path / "files", **info))
    assert report.run is not None
    rank = report.run.evidence.ranks[0]
    assert (rank.ending, rank.exception) == (ending, exception)
    assert rank.signal == (info.get("exit", {}).get("signal") or None)


def test_a_killed_rank_is_named_and_what_followed_is_not(tmp_path: Path) -> None:
    for rank in range(3):
        ring = RankRing(tmp_path / "rings", rank, 3)
        ring.call(STEP, age_s=30)
        if rank != 2:
            ring.call(STEP, state=RecordState.IN_FLIGHT, age_s=8)
        ring.write(tmp_path / "files", **ended(signal=9 if rank == 2 else 15))
    report = load(tmp_path / "files")
    causes = cause_incidents(report.incidents)
    assert [(c["category"], c["culprit_ranks"]) for c in causes] == [("rank_dead", [2])]
    text = to_text(report)
    assert "(1 call; killed by signal 9 (SIGKILL))" in text
    assert "(2 calls; stopped from outside by signal 15 (SIGTERM))" in text


def test_an_overwritten_ring_is_no_missing_rank(tmp_path: Path) -> None:
    """Rank 0's ring holds the last 10 calls only; the others' all 40."""
    for rank in range(3):
        ring = RankRing(tmp_path / "rings", rank, 3, capacity=10 if rank == 0 else 100)
        for number in range(40):
            ring.call(signature("all_reduce", ((number,),), reduce_op="sum"), age_s=50 - number)
        ring.write(tmp_path / "files")
    report = load(tmp_path / "files")
    assert report.findings == []
    assert report.run is not None
    (progress,) = report.run.evidence.ranks[0].progress.values()
    assert (progress.enqueued, progress.completed, progress.first_recorded) == (40, 40, 31)


def test_a_file_older_than_what_others_completed_names_no_culprit(tmp_path: Path) -> None:
    """Rank 1 wrote its file at a stall that passed; rank 0 wrote its own much later, in another stall."""
    late = RankRing(tmp_path / "rings", 1, 2)
    late.call(STEP, age_s=90)
    late.call(STEP, state=RecordState.IN_FLIGHT, age_s=60)
    late.write(tmp_path / "files")
    ring = RankRing(tmp_path / "rings", 0, 2)
    for _ in range(8):
        ring.call(STEP, age_s=30)
    ring.call(STEP, state=RecordState.IN_FLIGHT, age_s=8)
    ring.write(tmp_path / "files")
    report = load(tmp_path / "files")
    assert report.run is not None
    assert not report.run.evidence.ranks[1].complete
    assert "rank 1: its file is older than rank 0's, which completed a later collective" in report.undecided


def test_ranks_that_a_stop_of_the_job_ended_are_no_culprits_beside_an_older_file(tmp_path: Path) -> None:
    """That file does not show whether its rank outlived the others."""
    RankRing(tmp_path / "rings", 1, 3).write(tmp_path / "files")
    for rank in (0, 2):
        ring = RankRing(tmp_path / "rings", rank, 3)
        ring.call(STEP)
        ring.write(tmp_path / "files", **ended(signal=15))
    report = load(tmp_path / "files")
    assert report.findings == []
    assert report.undecided == ["rank 1: its file is older than rank 0's, which completed a later collective"]


def test_sends_and_receives_are_paired_by_the_numbers_recorded(tmp_path: Path) -> None:
    for rank in range(2):
        ring = RankRing(tmp_path / "rings", rank, 2, capacity=6)
        for number in range(20):
            what = "send" if rank == 0 else "recv"
            ring.call(signature(what, ((number,),), peer=1 - rank, tag=0))
        if rank == 0:
            ring.call(signature("send", ((5,),), peer=1, tag=0), state=RecordState.IN_FLIGHT, age_s=9)
        ring.write(tmp_path / "files")
    (incident,) = load(tmp_path / "files").incidents
    assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [1])
    assert (incident["operation"], incident["waiting_ranks"]) == ("send", [0])
    group = identity.group_id("0", range(2))
    assert incident["trace_id"] == identity.p2p_trace_id(RUN, group, 0, 1, 0, 20).hex()


def test_receives_from_any_source_of_several_senders_name_no_culprit(tmp_path: Path) -> None:
    for rank in range(3):
        ring = RankRing(tmp_path / "rings", rank, 3)
        for _ in range(2):
            if rank == 0:
                ring.call(signature("recv", ((4,),), any_source=True, tag=0))
            else:
                ring.call(signature("send", ((4,),), peer=0, tag=0), state=RecordState.IN_FLIGHT, age_s=9)
        ring.write(tmp_path / "files")
    report = load(tmp_path / "files")
    assert report.findings == []
    assert report.run is not None
    assert any("from any source" in note for note in report.undecided)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sound")
    hang(folder)
    with (folder / "files" / "trace_0").open("rb") as file:
        data: dict[str, Any] = pickle.load(file)
    return data


@given(data=st.data())
def test_no_content_of_our_own_files_stops_the_analyzer(
    tmp_path_factory: pytest.TempPathFactory, sound: dict[str, Any], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    facts = {
        **sound["otel_fr"],
        **data.draw(st.dictionaries(st.sampled_from(sorted(sound["otel_fr"])), values, max_size=2)),
    }
    if isinstance(facts["groups"], list) and facts["groups"] and isinstance(facts["groups"][0], dict):
        changed = st.dictionaries(st.sampled_from(sorted(sound["otel_fr"]["groups"][0])), values, max_size=2)
        facts["groups"] = [{**facts["groups"][0], **data.draw(changed)}]
    entry = sound["entries"][0]
    odd = {**entry, **data.draw(st.dictionaries(st.sampled_from(sorted(entry)), values, max_size=3))}
    content = {**sound, "otel_fr": facts, "entries": [odd, *sound["entries"][1:]]}
    (folder / "trace_0").write_bytes(pickle.dumps(content, 2))
    (folder / "trace_1").write_bytes(pickle.dumps(sound | {"otel_fr": {**sound["otel_fr"], "rank": 1}}, 2))
    report = load(folder)
    assert report.run is not None
    assert json.loads(to_json(report))["ranks"]
    assert to_text(report)


@pytest.mark.parametrize("number", [-1, 0, 2**31, 2**62, -(2**62), 2**64 - 1, 1e300, float("nan"), True, "7"])
@pytest.mark.parametrize("name", ["world_size", "written_at", "wall_offset_ns", "stall_seconds", "attempt", "ranks"])
def test_impossible_numbers_cost_nothing(tmp_path: Path, sound: dict[str, Any], name: str, number: object) -> None:
    facts = {**sound["otel_fr"], name: number}
    if name == "ranks":
        facts["groups"] = [{**facts["groups"][0], "ranks": f"0-{number}"}]
    (tmp_path / "trace_0").write_bytes(pickle.dumps({**sound, "otel_fr": facts}, 2))
    report = load(tmp_path)
    assert report.run is not None
    assert len(report.run.evidence.ranks) < 10
    assert to_text(report)
    assert json.loads(to_json(report))["files"]


def test_an_open_receive_from_any_source_does_not_make_its_sender_a_culprit(tmp_path: Path) -> None:
    for rank in range(3):
        ring = RankRing(tmp_path / "rings", rank, 3)
        if rank == 0:
            ring.call(signature("recv", ((4,),), any_source=True, tag=0))
            ring.call(signature("recv", ((4,),), any_source=True, tag=0), state=RecordState.IN_FLIGHT, age_s=9)
        elif rank == 1:
            ring.call(signature("send", ((4,),), peer=0, tag=0))
        ring.write(tmp_path / "files")
    assert [f for f in load(tmp_path / "files").findings if 1 in f.culprit_ranks] == []


@pytest.mark.parametrize(("ahead", "hours"), [(0, 0), (0, 7), (8, 7)])
def test_ranks_that_one_signal_ended_together_are_one_fault_on_clocks_that_differ(
    tmp_path: Path, ahead: int, hours: int
) -> None:
    """Rank 2 had not joined. Rank 3 waited, and was killed with it or, as a launcher does, ``ahead`` s later."""
    now = time.monotonic_ns()
    for rank in range(4):
        ring = RankRing(tmp_path / "rings", rank, 4, now=now)
        for age in (50, 45, 40):
            ring.call(STEP, age_s=age)
        if rank != 2:
            ring.call(STEP, state=RecordState.IN_FLIGHT, age_s=30)
        killed = ended(signal=9) if rank > 1 else {}
        path = ring.write(tmp_path / "files", "json", **killed)
        data = json.loads(path.read_text())
        shift = hours * 3600 * 10**9 if rank == 3 else 0
        data["otel_fr"]["written_at"] += shift - (20 - ahead * (rank == 3)) * 10**9 * (rank > 1)
        for entry in data["entries"]:
            for key in ("time_created_ns", "time_discovered_completed_ns"):
                entry[key] = entry[key] + shift if entry[key] else entry[key]
        path.write_text(json.dumps(data))
    found = load(tmp_path / "files").incidents
    assert [(one["category"], one["culprit_ranks"]) for one in found] == [("rank_dead", [2] if ahead else [2, 3])]
