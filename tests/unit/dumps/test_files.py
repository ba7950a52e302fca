"""Files made from rings: everything that was recorded comes back, and nothing else is written."""

from __future__ import annotations

import json
import pickle
import pickletools
import stat
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.dumps.read import load, load_folder
from otel_fr.dumps.write import is_ours, write_dump
from otel_fr.match.model import CallState
from otel_fr.ring import KIND_GROUP, KIND_MONITORED, NewGroup, RecordState, SignatureDef
from tests.support.rings import OPERATIONS, RUN, SIDES, RankRing, signature

STATES = {
    RecordState.IN_FLIGHT: CallState.IN_FLIGHT,
    RecordState.COMPLETED: CallState.COMPLETED,
    RecordState.FAILED: CallState.FAILED,
    RecordState.UNKNOWN: CallState.UNKNOWN,
}
shapes = st.lists(st.lists(st.integers(0, 2**15), max_size=4), max_size=4)
splits = st.none() | st.lists(st.integers(0, 1000), max_size=4).map(tuple)


@st.composite
def signatures(draw: st.DrawFn) -> SignatureDef:
    operation = draw(st.sampled_from(OPERATIONS))
    outputs = tuple(tuple(size) for size in draw(shapes))
    members = draw(st.lists(st.integers(0, 100), max_size=6, unique=True).map(tuple))
    new = NewGroup(draw(st.text("ab 1", min_size=1)), draw(st.text("ab 1")), members, draw(st.booleans()))
    return signature(
        operation,
        draw(shapes),
        output_sizes=outputs,
        output_dtypes=tuple(draw(st.sampled_from(["Float", "Long", "BFloat16"])) for _ in outputs),
        reduce_op=draw(st.none() | st.sampled_from(["sum", "max"])),
        root=draw(st.none() | st.integers(0, 3)),
        peer=draw(st.integers(0, 3)) if operation in ("send", "recv") else None,
        tag=draw(st.integers(0, 2**31)) if operation in ("send", "recv") else None,
        input_splits=draw(splits),
        output_splits=draw(splits),
        new_group=new if operation == "new_group" else None,
    )


@given(
    calls=st.lists(st.tuples(signatures(), st.sampled_from(list(STATES))), max_size=12),
    capacity=st.integers(3, 20),
    fmt=st.sampled_from(["pickle", "json"]),
    function=st.text(max_size=20).filter(lambda text: text.isprintable()),
)
def test_what_was_recorded_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    calls: list[tuple[SignatureDef, RecordState]],
    capacity: int,
    fmt: Literal["pickle", "json"],
    function: str,
) -> None:
    folder = tmp_path_factory.mktemp("round")
    ring = RankRing(folder, rank=1, world_size=4, capacity=capacity)
    for what, state in calls:
        kind = {"monitored_barrier": KIND_MONITORED, "new_group": KIND_GROUP}.get(what.operation, 0)
        ring.call(what, state=state, kind=kind, site=(("/job/train.py", 7, function),))
    path = ring.write(folder / "out", fmt)
    dump = load(path)
    ring.writer.close()

    kept = calls[-capacity:]
    assert [entry.record for entry in dump.entries] == list(range(len(calls)))[-capacity:]
    for entry, (what, state) in zip(dump.entries, kept, strict=True):
        seen = entry.signature
        assert seen.operation == what.operation
        assert entry.state is STATES[state]
        assert (seen.reduce_op, seen.root, seen.peer, seen.tag) == (what.reduce_op, what.root, what.peer, what.tag)
        for side in SIDES:
            want = getattr(what, side)
            if want == () and side.endswith("splits"):
                want = None  # an empty list of splits asks for even ones
            assert getattr(seen, side) == want, side
        new, wanted = seen.new_group, what.new_group
        assert new == wanted
        assert entry.stream == ("group" if new is not None else entry.stream)
        assert entry.site == f"/job/train.py:7 {function}".rstrip()
        assert entry.age == pytest.approx(10, abs=5)
        assert (entry.duration is None) == (state is RecordState.IN_FLIGHT)
    group = next(group for group in dump.groups.values() if group.name == "0")
    collectives = [w for w, _ in calls if w.operation not in ("send", "recv", "monitored_barrier", "new_group")]
    assert (group.ranks, group.enqueued) == ((0, 1, 2, 3), len(collectives))
    assert dump.partial == (len(calls) > capacity and any(s is RecordState.IN_FLIGHT for _, s in calls[:-capacity]))


def test_a_file_describes_itself(tmp_path: Path) -> None:
    ring = RankRing(tmp_path / "ring", rank=2, world_size=4)
    ring.call(signature("all_reduce", reduce_op="sum"), state=RecordState.FAILED, took_s=60, age_s=90)
    exit_ = {"code": 1, "signal": 0, "clean": False, "known": True}
    path = ring.write(tmp_path, exit=exit_, stack="Thread 1\n", exception={"type": "ValueError", "message": "bad"})
    with path.open("rb") as file:
        data = pickle.load(file)
    facts = data["otel_fr"]
    assert (facts["rank"], facts["world_size"], facts["job_id"], facts["run_id"]) == (2, 4, "job-7", RUN)
    assert (facts["reason"], facts["exit"], facts["stack"]) == ("stall", exit_, "Thread 1\n")
    assert facts["exception"]["type"] == "ValueError"
    (entry,) = data["entries"]
    assert entry["profiling_name"] == "gloo:all_reduce"
    assert entry["process_group"] == ("0", "default_pg")
    # A call that failed must not look completed to any reader; what happened stands beside it.
    assert (entry["state"], entry["retired"], entry["time_discovered_completed_ns"]) == ("scheduled", False, None)
    assert (entry["otel_fr_state"], entry["otel_fr_error"]) == ("failed", "timeout")
    assert data["version"] == "2.10"
    assert data["pg_config"]["0"] == {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}
    assert data["pg_status"]["0"] == {
        "last_enqueued_collective": 1,
        "last_started_collective": -1,
        "last_completed_collective": 0,
    }


def test_the_json_file_follows_pytorchs_conventions(tmp_path: Path) -> None:
    ring = RankRing(tmp_path / "ring", rank=0, world_size=2)
    ring.call(signature("all_gather_into_tensor", ((2,),), output_sizes=((4,),)), state=RecordState.IN_FLIGHT)
    data = json.loads(ring.write(tmp_path, "json").read_text())
    (entry,) = data["entries"]
    assert entry["profiling_name"] == "gloo:_all_gather_base"
    assert entry["process_group"] == ["0", "default_pg"]
    assert (entry["time_discovered_started_ns"], entry["time_discovered_completed_ns"]) == (0, 0)
    assert data["pg_status"]["0"]["last_enqueued_collective"] == "1"


def test_a_pickle_of_many_records_names_nothing_and_is_one_pickle(tmp_path: Path) -> None:
    ring = RankRing(tmp_path / "ring", rank=0, world_size=2, capacity=2000)
    for size in range(1500):
        ring.call(signature("all_reduce", ((size % 300,),), reduce_op="sum"))
    data = ring.write(tmp_path).read_bytes()
    assert {op.name for op, _, _ in pickletools.genops(data)}.isdisjoint({"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"})
    sizes = [entry["input_sizes"] for entry in pickle.loads(data)["entries"]]
    assert sizes == [[[size % 300]] for size in range(1500)]


def test_the_file_is_private_and_replaces_only_our_own(tmp_path: Path) -> None:
    ring = RankRing(tmp_path / "ring", rank=0, world_size=1)
    folder = tmp_path / "new" / "folder"
    path = ring.write(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    ring.call(signature("barrier", ()))
    assert ring.write(folder) == path
    assert len(load(path).entries) == 1
    assert is_ours(path)
    assert is_ours(ring.write(folder, "json"))

    path.write_bytes(pickle.dumps({"entries": [], "otel_fr": 1}, 2))
    with pytest.raises(FileExistsError, match="not written by otel-fr"):
        ring.write(folder)
    assert pickle.loads(path.read_bytes()) == {"entries": [], "otel_fr": 1}
    assert not is_ours(path)
    assert not is_ours(folder / "none")
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []


def test_a_record_that_holds_no_plain_values_is_made_plain(tmp_path: Path) -> None:
    ring = RankRing(tmp_path / "ring", rank=0, world_size=1)
    snapshot = ring.snapshot(exit={"signal": RecordState.FAILED, "path": Path("/x"), "ranks": {3}, "odd": float("inf")})
    for fmt in ("pickle", "json"):
        write_dump(tmp_path / f"t_0{fmt}", snapshot, fmt)
        facts = load(tmp_path / f"t_0{fmt}").facts
        assert facts["exit"] == {"signal": 2, "path": "/x", "ranks": [3], "odd": None}


def test_a_group_made_anew_under_the_same_name_is_a_group_of_its_own(tmp_path: Path) -> None:
    ring = RankRing(tmp_path / "ring", rank=0, world_size=2)
    ring.group("1", [0, 1], "first")
    ring.call(signature("all_reduce"), group="1")
    ring.group("1", [0], "second")
    ring.call(signature("broadcast", root=0), group="1")
    dumps, problems = load_folder(ring.write(tmp_path / "out").parent)
    assert problems == []
    by_id = dumps[0].groups
    seen = {by_id[e.group].description: (e.signature.operation, by_id[e.group].ranks) for e in dumps[0].entries}
    assert seen == {"first": ("all_reduce", (0, 1)), "second": ("broadcast", (0,))}
