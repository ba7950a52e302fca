"""Files with what torch 2.14's FlightRecorderHook recorded: ``c10d:`` calls, retired when they have been issued."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from otel_fr.analyze import Analysis, load
from otel_fr.dumps.read import load as load_file
from otel_fr.match.model import CallState
from tests.support.torch_files import entry, group, write

GROUPS = {"0": group("0", "default_pg", [0, 1])}

Call = dict[str, Any]


def hooked(operation: str, number: int, **more: Any) -> Call:
    """What the hook records of a call in place: no outputs, no end."""
    fields = {"state": "scheduled", "output_sizes": [], "output_dtypes": [], "retired": True}
    return entry(0, f"c10d:{operation}", number, **{**fields, **more})


def by_backend(operation: str, number: int, retired: bool = True) -> Call:
    """What gloo records of it."""
    return entry(0, f"gloo:{operation}", number, state="scheduled", retired=retired)


def in_order(*calls: Call) -> list[Call]:
    return [{**call, "record_id": at, "op_id": at + 1} for at, call in enumerate(calls)]


def hook_only(count: int, *more: Call) -> list[Call]:
    return in_order(*(hooked("allreduce", number) for number in range(1, count + 1)), *more)


def both(count: int, behind: int = 0, ended: bool = True) -> list[Call]:
    """Calls that hook and backend recorded; the hook has not seen the first ``behind``. ``ended``: the last one has."""
    calls: list[Call] = []
    for number in range(1, count + 1):
        if number > behind:
            calls.append(hooked("allreduce", number - behind))
        calls.append(by_backend("all_reduce", number, ended or number < count))
    return in_order(*calls)


def judge(folder: Path, first: list[Call], second: list[Call]) -> Analysis:
    return load(write(folder, {0: first, 1: second}, **GROUPS))


def say_completed(path: Path, number: int) -> None:
    """Let the file say, as such files do, that the calls up to this one have completed."""
    status = {"last_enqueued_collective": number, "last_started_collective": -1, "last_completed_collective": number}
    path.write_bytes(pickle.dumps({**pickle.loads(path.read_bytes()), "pg_status": {"0": status}}, 2))


def test_the_hooks_calls_are_not_known_to_have_ended(tmp_path: Path) -> None:
    assert judge(tmp_path, hook_only(3), hook_only(3)).findings == []
    say_completed(tmp_path / "trace_0", 3)
    assert {call.state for call in load_file(tmp_path / "trace_0").entries} == {CallState.UNKNOWN}
    assert not load_file(tmp_path / "trace_0").has_completions


def test_a_rank_that_the_hooks_show_missing(tmp_path: Path) -> None:
    (finding,) = judge(tmp_path, hook_only(3), hook_only(2)).findings
    assert (finding.category.value, finding.culprit_ranks) == ("missing_rank", (1,))


def test_where_the_backend_records_too_its_entries_count(tmp_path: Path) -> None:
    write(tmp_path, {0: both(3, behind=1, ended=False), 1: both(2, behind=1)}, **GROUPS)
    say_completed(tmp_path / "trace_0", 3)
    (finding,) = load(tmp_path).findings
    assert (finding.category.value, finding.culprit_ranks) == ("missing_rank", (1,))
    waits = load_file(tmp_path / "trace_0")
    assert [(call.sequence_id, call.state) for call in waits.entries] == [
        (1, CallState.COMPLETED),
        (2, CallState.COMPLETED),
        (3, CallState.IN_FLIGHT),
    ]
    (progress,) = waits.groups.values()
    assert (progress.enqueued, progress.completed) == (3, 2)
    assert not waits.partial
    assert waits.notes == []


def test_a_healthy_job_that_both_recorded(tmp_path: Path) -> None:
    report = judge(tmp_path, both(4), both(4, behind=2))
    assert report.findings == []
    assert len(report.collectives) == 4


def test_calls_that_both_recorded_are_no_batch(tmp_path: Path) -> None:
    """In a file without the oldest calls, calls with one number would be a batch whose end was left out."""
    calls = [{**call, "record_id": call["record_id"] + 100} for call in both(3, ended=False)]
    write(tmp_path, {0: calls}, **GROUPS)
    assert load_file(tmp_path / "trace_0").entries[-1].state is CallState.IN_FLIGHT


def test_sends_that_only_the_hook_recorded_remain(tmp_path: Path) -> None:
    send = hooked("send", 2, p2p_seq_id=1, is_p2p=True)
    calls = in_order(by_backend("all_reduce", 1), hooked("allreduce", 1), send)
    write(tmp_path, {0: calls}, **GROUPS)
    found = load_file(tmp_path / "trace_0").entries
    assert [(call.signature.operation, call.stream) for call in found] == [
        ("all_reduce", "collective"),
        ("send", "p2p"),
    ]


def test_a_call_that_says_it_completed_has(tmp_path: Path) -> None:
    write(tmp_path, {0: [hooked("allreduce", 1, state="completed")]}, **GROUPS)
    assert load_file(tmp_path / "trace_0").entries[0].state is CallState.COMPLETED
