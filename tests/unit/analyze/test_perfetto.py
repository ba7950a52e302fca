"""``--format perfetto``: a trace with a process per rank, a thread per group, and arrows from the culprit."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from otel_fr.analyze import load
from otel_fr.analyze.output import perfetto
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.perfetto import write_trace
from tests.support.torch_files import BEGIN, SECOND, entry, group, hostile_folder, one_missing, write
from tests.support.trace_events import Slice, Trace


def traced(folder: Path, view: View | None = None) -> Trace:
    parts: list[str] = []
    write_trace(load(folder), view or View(), parts.append)
    return Trace("".join(parts))


def numbers(slices: list[Slice]) -> list[tuple[str, int]]:
    return [(item.name, item.args["number"]) for item in slices if "number" in item.args]


def test_every_call_is_on_the_thread_of_its_group(tmp_path: Path) -> None:
    trace = traced(one_missing(tmp_path))
    calls = trace.of("rank 0, waiting")
    assert numbers(calls) == [("all_reduce", 1), ("all_reduce", 2), ("all_reduce (in flight)", 3)]
    assert {item.thread for item in calls} == {"default_pg (0)"}
    first = calls[0]
    assert (first.start, first.end) == (0, SECOND // 2)
    assert first.args["input"] == "[4, 4] Float"
    assert (first.args["state"], first.args["site"]) == ("completed", "/job/train.py:40 step")
    assert (first.args["queued_us"], first.args["ran_us"]) == (1.0, 499_999.0)
    assert "/job/train.py:9 main" in calls[2].args["stack"]
    assert trace.about["begins_at"].startswith("2026-")
    assert "all_reduce number 3" in trace.about["verdict"]


def test_arrows_lead_from_what_is_missing_to_those_that_wait(tmp_path: Path) -> None:
    trace = traced(one_missing(tmp_path))
    missing = [item for item in trace.of("rank 2, culprit") if item.name == "missing: all_reduce number 3"]
    assert len(missing) == 1
    assert [source for source, _ in trace.arrows] == missing * 3
    assert {(target.process, target.name) for _, target in trace.arrows} == {
        (f"rank {rank}, waiting", "all_reduce (in flight)") for rank in (0, 1, 3)
    }
    (incident,) = trace.of("otel-fr: incidents")
    assert incident.name == "missing_rank"
    assert "rank 2 " in incident.args["summary"]
    assert incident.start == missing[0].start


def test_where_calls_disagree_arrows_begin_at_the_culprits_call(tmp_path: Path) -> None:
    ranks = {rank: [entry(0, "all_reduce", 1, sizes=[[5 if rank == 1 else 4]], state="scheduled")] for rank in range(4)}
    trace = traced(write(tmp_path, ranks))
    assert {(source.process, target.process) for source, target in trace.arrows} == {
        ("rank 1, culprit", f"rank {rank}, waiting") for rank in (0, 2, 3)
    }
    assert all(source.args["input"] == "[5] Float" for source, _ in trace.arrows)


def test_clocks_are_aligned_by_shared_collectives(tmp_path: Path) -> None:
    """Rank 1's clock is 7 hours ahead; every collective ends on both ranks at the same moment."""
    ahead = 7 * 3600 * SECOND
    ranks = {}
    for rank in range(2):
        calls = []
        for number in range(5):
            begun = BEGIN + number * SECOND + (0 if rank else 200_000_000)  # rank 0 comes last
            shift = ahead if rank else 0
            ended = BEGIN + number * SECOND + 500_000_000
            times = {"time_created_ns": begun + shift, "time_discovered_completed_ns": ended + shift}
            calls.append(entry(number, "all_reduce", number + 1, **times))
        ranks[rank] = calls
    first, second = (traced(write(tmp_path, ranks)).of(f"rank {rank}") for rank in range(2))
    assert [item.end for item in first] == [item.end for item in second]
    assert [item.start - other.start for item, other in zip(first, second, strict=True)] == [200_000_000] * 5


def test_calls_in_flight_at_once_have_threads_of_their_own(tmp_path: Path) -> None:
    """As a backward pass enqueues them: each begins before the one before has ended."""
    calls = [
        entry(
            number,
            "all_reduce",
            number + 1,
            time_created_ns=BEGIN + number,
            time_discovered_completed_ns=BEGIN + 1000 * (number % 5 + 1) + number,
        )
        for number in range(200)
    ]
    trace = traced(write(tmp_path, {0: calls, 1: calls}))
    assert len(trace.of("rank 0")) == 200
    threads = {item.thread for item in trace.of("rank 0")}
    assert {"default_pg (0)", "default_pg (0), 2 at once"} < threads
    assert len(threads) == perfetto.MAX_LANES


@pytest.mark.parametrize("seed", range(20))
def test_events_of_one_thread_never_overlap(seed: int, tmp_path: Path) -> None:
    """Times as damaged files and bad clocks have them, in several groups."""
    chance = random.Random(seed)
    groups = {"0": group("0", "default_pg", range(4)), "1": group("1", "tp", (0, 1)), "2": group("2", "tp", (2, 3))}
    ranks = {}
    for rank in range(4):
        calls = []
        for record in range(60):
            name = chance.choice(["0", "1" if rank < 2 else "2"])
            calls.append(
                entry(
                    record,
                    "all_reduce",
                    record + 1,
                    process_group=(name, groups[name]["desc"]),
                    pg_id=int(name),
                    state=chance.choice(["completed", "completed", "scheduled", "started"]),
                    time_created_ns=chance.choice([None, 0, -5, 1 << 62, BEGIN + chance.randrange(SECOND)]),
                    time_discovered_started_ns=chance.choice([None, BEGIN + chance.randrange(SECOND)]),
                    time_discovered_completed_ns=chance.choice([None, 1, 1 << 63, BEGIN + chance.randrange(SECOND)]),
                    duration_ms=chance.choice([None, -1.0, 1e300, chance.random()]),
                )
            )
        ranks[rank] = calls
    trace = traced(write(tmp_path, ranks, **groups))
    assert sum("number" in item.args for item in trace.slices) > 100


def test_without_any_time_calls_are_in_their_order(tmp_path: Path) -> None:
    none = {"time_created_ns": None, "time_discovered_started_ns": None, "time_discovered_completed_ns": None}
    ranks = {rank: [entry(n, "all_reduce", n + 1, **none) for n in range(rank, 4)] for rank in range(2)}
    trace = traced(write(tmp_path, ranks))
    starts = [{item.args["number"]: item.start for item in trace.of(f"rank {rank}")} for rank in range(2)]
    assert sorted(starts[0].values()) == [starts[0][number] for number in (1, 2, 3, 4)]
    assert all(starts[0][number] == at for number, at in starts[1].items())
    assert trace.about["times"].startswith("none")


def test_what_is_shown_can_be_chosen(tmp_path: Path) -> None:
    trace = traced(one_missing(tmp_path), View(ranks=frozenset([0, 2])))
    assert {item.process for item in trace.slices} == {"rank 0, waiting", "rank 2, culprit", "otel-fr: incidents"}
    trace = traced(tmp_path, View(groups=frozenset(["other"])))
    assert [item.name for item in trace.slices if "number" in item.args] == []


def test_the_newest_calls_of_each_rank_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "MAX_CALLS", 20)
    ranks = {rank: [entry(number, "all_reduce", number + 1) for number in range(30)] for rank in range(4)}
    parts: list[str] = []
    assert write_trace(load(write(tmp_path, ranks)), View(), parts.append) == 100
    trace = Trace("".join(parts))
    assert numbers(trace.of("rank 3")) == [("all_reduce", number) for number in range(26, 31)]


def test_of_chosen_groups_too_the_newest_calls_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "MAX_CALLS", 8)
    early = [entry(number, "all_reduce", number + 1, process_group=("1", "tp"), pg_id=1) for number in range(6)]
    calls = early + [entry(number, "all_reduce", number + 1) for number in range(6, 30)]
    parts: list[str] = []
    folder = write(
        tmp_path, {0: calls, 1: calls}, **{"0": group("0", "default_pg", (0, 1)), "1": group("1", "tp", (0, 1))}
    )
    assert write_trace(load(folder), View(groups=frozenset(["tp"])), parts.append) == 4
    shown = Trace("".join(parts)).of("rank 1")
    assert numbers(shown) == [("all_reduce", number) for number in range(3, 7)]
    assert len({item.start for item in shown}) == 4


def test_nothing_in_a_file_breaks_the_trace(tmp_path: Path) -> None:
    trace = traced(hostile_folder(tmp_path))
    for item in trace.slices:
        for text in (item.process, item.thread, item.name, *map(str, item.args.values())):
            assert all(line.isprintable() for line in text.split("\n"))


def test_no_file_is_an_empty_trace(tmp_path: Path) -> None:
    assert traced(tmp_path).slices == []


def test_the_trace_is_written_in_pieces(tmp_path: Path) -> None:
    """No piece grows with the number of calls."""
    parts: list[str] = []
    ranks = {rank: [entry(number, "all_reduce", number + 1) for number in range(300)] for rank in range(3)}
    write_trace(load(write(tmp_path, ranks)), View(), parts.append)
    assert max(map(len, parts)) < 2_000
    assert len(json.loads("".join(parts))["traceEvents"]) > 900
