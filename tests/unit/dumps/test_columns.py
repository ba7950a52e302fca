"""Entries as columns: the quick way of reading them gives what the careful one gives."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.dumps import resolve
from otel_fr.dumps.columns import Entries, codes
from otel_fr.dumps.entry import Entry
from otel_fr.dumps.entry_reader import EntryReader
from otel_fr.dumps.read import load
from otel_fr.dumps.recorders import OtelFrReader, PyTorchReader
from otel_fr.dumps.safe_parse import UnreadableDump
from otel_fr.match import CallState, Signature
from otel_fr.ring import RecordState
from tests.support.entries import entries_of
from tests.support.rings import OPERATIONS, RankRing, signature
from tests.support.torch_files import entry, write

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=3)
DTYPES = st.lists(st.sampled_from(["Float", "BFloat16", ""]), max_size=2)
NANOSECONDS = st.integers(1_700_000_000_000_000_000, 1_700_000_001_000_000_000)
NAMES = [
    "nccl:all_reduce",
    "nccl:_reduce_scatter_base",
    "gloo:all_to_all",
    "nccl:send 0->1",
    "nccl:recv 1<-0",
    "recv 0<-?",
    "nccl:coalesced",
    "nccl:_broadcast_oop",
    "nccl:ALLGATHER_coalesced",
    "REDUCE_SCATTER_coalesced",
]
FRAMES = [[{"name": f"f{n}", "filename": f"/opt/{n}.py", "line": n} for n in range(k)] for k in range(4)]
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "frames": st.sampled_from(FRAMES),
    "record_id": st.integers(0, 2000),
    "pg_id": st.integers(0, 2),
    "process_group": st.sampled_from([("0", "default_pg"), ("1", "tp"), ["1", "tp"]]),
    "collective_seq_id": st.integers(0, 9),
    "p2p_seq_id": st.integers(0, 9),
    "profiling_name": st.sampled_from(NAMES),
    "time_created_ns": NANOSECONDS,
    "input_sizes": SHAPES,
    "output_sizes": SHAPES,
    "input_dtypes": DTYPES,
    "output_dtypes": DTYPES,
    "state": st.sampled_from(["scheduled", "started", "completed"]),
    "time_discovered_started_ns": st.none() | NANOSECONDS,
    "time_discovered_completed_ns": st.none() | st.just(0) | NANOSECONDS,
    "retired": st.booleans(),
    "timeout_ms": st.sampled_from([600000, 0]),
    "is_p2p": st.booleans(),
    "thread_name": st.sampled_from(["", "python"]),
}
ENTRY = st.fixed_dictionaries(FIELDS, optional={"duration_ms": st.floats(0, 1e6)})
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["7", "1e3", 2**62, -(2**62), 2**63, float("inf")]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def both_ways(made: Callable[[], EntryReader], raw: list[Any]) -> tuple[Entries, Entries | None]:
    careful, quick = made(), made()
    slow = careful.read_any(raw)
    fast = quick.read_usual(raw)
    if fast is not None:
        assert fast == slow
        assert quick.ends.tolist() == careful.ends.tolist()
        assert quick.notes == careful.notes
        for name in ("groups", "local_ids"):
            assert getattr(quick, name, None) == getattr(careful, name, None)
    return slow, fast


@given(raw=st.lists(ENTRY, min_size=1, max_size=12))
def test_usual_entries_are_read_the_quick_way_with_the_same_result(raw: list[dict[str, Any]]) -> None:
    _, fast = both_ways(lambda: PyTorchReader(), raw)
    assert fast is not None
    assert len(fast) == len(raw)


@given(
    raw=st.lists(ENTRY, min_size=1, max_size=5),
    changes=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(sorted(FIELDS)), ODD), max_size=3),
    gone=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(sorted(FIELDS))), max_size=2),
)
def test_odd_entries_give_the_same_both_ways(
    raw: list[dict[str, Any]], changes: list[tuple[int, str, Any]], gone: list[tuple[int, str]]
) -> None:
    for index, name, value in changes:
        raw[index % len(raw)][name] = value
    for index, name in gone:
        raw[index % len(raw)].pop(name, None)
    try:
        slow, _ = both_ways(lambda: PyTorchReader(), raw)
    except UnreadableDump:
        return
    assert entries_of(list(slow)) == slow


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("own")
    ring = RankRing(folder / "rings", 0, 2)
    for state in (RecordState.COMPLETED, RecordState.IN_FLIGHT, RecordState.FAILED):
        for operation in OPERATIONS:
            ring.call(signature(operation, peer=1, tag=0, root=0, reduce_op="sum"), state=state)
    for waited in (0, 2.0):
        ring.call(signature("recv", peer=1, tag=0), state=RecordState.IN_FLIGHT, waited_s=waited)
    ring.call(signature("all_to_all_single", input_splits=(1, 2), output_splits=(2, 1)))
    with ring.write(folder / "files").open("rb") as file:
        found: dict[str, Any] = pickle.load(file)
    return found


@given(data=st.data())
def test_our_own_entries_give_the_same_both_ways(own: dict[str, Any], data: st.DataObject) -> None:
    raw = copy.deepcopy(own["entries"])
    fields = sorted({name for one in raw for name in one})
    odd = st.lists(st.tuples(st.integers(0, len(raw) - 1), st.sampled_from(fields), ODD), max_size=3)
    for index, name, value in data.draw(odd):
        raw[index][name] = value
    clock = data.draw(st.none() | st.integers(0, 2**61))
    offset = data.draw(st.none() | st.integers(-(2**61), 2**61))
    try:
        both_ways(lambda: OtelFrReader(clock, offset), raw)
    except UnreadableDump:
        return


def test_our_own_files_are_read_the_quick_way(own: dict[str, Any]) -> None:
    _, fast = both_ways(lambda: OtelFrReader(10**18, 10**18), own["entries"])
    assert fast is not None
    assert len(fast) == len(own["entries"])


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_call_ages_while_it_is_waited_for_and_not_while_it_is_only_posted(form: Any, tmp_path: Path) -> None:
    ring = RankRing(tmp_path / "rings", 0, 2)
    for waited in (None, 0, 2.0):
        ring.call(signature("recv", peer=1, tag=0), state=RecordState.IN_FLIGHT, age_s=50.0, waited_s=waited)
    ages = [entry.age for entry in load(ring.write(tmp_path / "files", fmt=form)).entries]
    assert ages == [pytest.approx(50, abs=5), 0.0, pytest.approx(2, abs=1.5)]


def test_a_call_has_its_whole_traceback_its_times_its_backend_and_its_thread(tmp_path: Path) -> None:
    inner = [
        {"name": "all_reduce", "filename": "/venv/torch/distributed/distributed_c10d.py", "line": 3},
        {"name": "step", "filename": "/job/train.py", "line": 7},
        {"name": "main", "filename": "/job/train.py", "line": 99},
    ]
    times = {"time_created_ns": 1000, "time_discovered_started_ns": 2000, "time_discovered_completed_ns": 5000}
    write(tmp_path, {0: [entry(4, "all_reduce", 5, frames=inner, thread_name="autograd", **times)]})
    (found,) = load(tmp_path / "trace_0").entries
    assert found.site == "/job/train.py:7 step"
    assert found.frames == (
        "/venv/torch/distributed/distributed_c10d.py:3 all_reduce",
        "/job/train.py:7 step",
        "/job/train.py:99 main",
    )
    assert (found.created_ns, found.started_ns, found.ended_ns) == (1000, 2000, 5000)
    assert (found.backend, found.thread, found.duration) == ("nccl", "autograd", 4e-6)


SIGNATURES = [Signature("all_reduce", ((1,),), ((2,),), ("Float",)), Signature("broadcast")]
CALL = st.fixed_dictionaries(
    {
        "group": st.sampled_from("ab"),
        "stream": st.sampled_from(["collective", "p2p"]),
        "sequence_id": st.integers(1, 6),
        "record": st.integers(0, 99),
        "signature": st.sampled_from(SIGNATURES),
        "state": st.sampled_from(CallState),
        "duration": st.none() | st.floats(0, 9),
        "batch": st.none() | st.integers(0, 3),
        "created_ns": st.none() | st.integers(1, 9),
    }
).map(lambda values: Entry(**values))


@given(st.lists(CALL, max_size=10))
def test_entries_are_a_sequence_of_entry(calls: list[Entry]) -> None:
    entries = entries_of(calls)
    assert len(entries) == len(calls)
    assert list(entries) == calls
    assert [entries[at] for at in range(-len(calls), len(calls))] == calls + calls
    assert list(entries[1::2]) == calls[1::2]
    assert list(reversed(entries)) == calls[::-1]
    assert pickle.loads(pickle.dumps(entries)) == entries == calls
    with pytest.raises(IndexError):
        entries[len(calls)]


def batches_one_by_one(calls: list[Entry], ends: list[int]) -> list[Entry]:
    """What `resolve.resolve_batches` says, in the plainest way."""
    members: dict[tuple[object, ...], list[int]] = {}
    out: list[Entry | None] = []
    records = [call.record for call in calls]
    wrapped = bool(calls) and (records[0] > 0 or max(records) - min(records) >= len(calls))
    for at, (call, end) in enumerate(zip(calls, ends, strict=True)):
        out.append(call)
        place = (call.group, call.stream, call.sequence_id)
        if not end:
            members.setdefault(place, []).append(at)
            continue
        batch = members.pop(place, [])
        if end == 1:
            out[at] = None if batch else call
            for part in batch:
                out[part] = calls[part]._replace(state=call.state, duration=call.duration, batch=call.record)
        elif batch:
            pieces = [calls[part].signature for part in batch]
            made = resolve._list_operation(["all_gather", "reduce_scatter"][end - 2], call.signature, pieces)
            if wrapped and batch[0] == 0:  # pieces before it were overwritten
                made = made._replace(output_sizes=()) if end == 2 else made._replace(input_sizes=())
            out[at] = call._replace(signature=made)
            for part in batch:
                out[part] = None
    ended = {(c.group, c.stream, c.sequence_id) for c, end in zip(calls, ends, strict=True) if end}
    shared = Counter((c.group, c.stream, c.sequence_id) for c in calls)
    for at, call in enumerate(calls):
        place = (call.group, call.stream, call.sequence_id)
        if wrapped and place not in ended and shared[place] > 1:  # its end completed and was left out
            out[at] = call._replace(state=CallState.COMPLETED)
    return [call for call in out if call is not None]


@given(st.lists(st.tuples(CALL, st.sampled_from([0, 0, 0, 1, 2, 3])), max_size=10))
def test_batches_take_the_state_of_their_end(rows: list[tuple[Entry, int]]) -> None:
    calls, ends = [call._replace(batch=None) for call, _ in rows], [end for _, end in rows]
    entries = entries_of(calls)
    found = resolve.resolve_batches(entries, codes(ends), wrapped=not resolve.is_whole(entries))
    assert found == batches_one_by_one(calls, ends)


def newest_one_by_one(calls: list[Entry]) -> list[Entry]:
    newer: dict[str, Entry] = {}
    gone: set[str] = set()
    kept: list[Entry] = []
    for call in reversed(calls):
        if call.stream == "collective" and call.group not in gone:
            after = newer.get(call.group, call)
            same = after is call or (call.batch is not None and call.batch == after.batch)
            if call.sequence_id > after.sequence_id or (call.sequence_id == after.sequence_id and not same):
                gone.add(call.group)
            newer[call.group] = call
        if call.group not in gone:
            kept.append(call)
    return kept[::-1]


@given(st.lists(CALL, max_size=10))
def test_calls_of_groups_made_anew_are_left_out(calls: list[Entry]) -> None:
    assert resolve.drop_replaced_groups(entries_of(calls)) == newest_one_by_one(calls)
    counts: dict[str, int] = {}
    for at, call in enumerate(calls):
        if call.stream == "collective":
            calls[at] = call._replace(sequence_id=counts.setdefault(call.group, 0))
            counts[call.group] += 1
    assert resolve.number_by_order(entries_of(calls)) == calls
