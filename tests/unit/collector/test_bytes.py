"""What is kept of what clients send is bounded in bytes, however long each text and list is."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable

import pytest
from otel_fr_collector import timeline
from otel_fr_collector.jobs import groups as groups_module
from otel_fr_collector.jobs import rank_reports
from otel_fr_collector.jobs import ranks as ranks_module
from otel_fr_collector.jobs import run as run_module
from otel_fr_collector.jobs.calls import Interner, RankCall, Template, weight_of
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.run_spans import add_spans
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.span_reader import SpanReader
from otel_fr_collector.otlp.signals import TRACES

from otel_fr.match import CallState, Group, Signature
from otel_fr.match.facts import legal
from tests.support import hostile
from tests.support.services import new_service
from tests.support.told import group_in, new_run, run_in, take

MIB = 1 << 20
WIDE = "😀"
"""Makes each character of a text take four bytes."""


@pytest.mark.parametrize("kind", [hostile.long_sites, hostile.long_names, hostile.long_dtypes])
def test_the_memory_that_hostile_spans_leave_behind_is_bounded(
    kind: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MAX_GROUPS", 200)

    async def play() -> int:
        service = new_service()
        service.ingest._interner = Interner(MIB)
        service.ingest._spans = SpanReader(service.ingest._interner)
        service.runs._max_weight = 2_000
        tracemalloc.start()
        for number in range(8):
            await service.take(TRACES, kind(number))
        return tracemalloc.get_traced_memory()[0]

    try:
        kept = asyncio.run(play())
    finally:
        tracemalloc.stop()
    # Two generations of four caches, the calls, the groups, and what Python's own objects take beyond the estimate.
    assert kept < 5 * MIB, f"{kept / MIB:.1f} MiB"


def test_a_signature_weighs_what_its_numbers_and_texts_take() -> None:
    assert weight_of(Signature("all_reduce", ((3, 4),), ((3, 4),), ("Float",), ("Float",), "sum")) <= 1
    assert weight_of(Signature("x", ((2**40,) * 1_000,))) >= 36 * 1_000 // 300
    assert weight_of(Signature("x", input_dtypes=(WIDE * 60,) * 100)) >= 4 * 60 * 100 // 300


def big(number: int) -> Signature:
    return Signature("all_reduce", ((number, *range(1_000, 5_000)),))


def test_the_latest_call_of_a_rank_is_kept_without_a_large_signature() -> None:
    run = new_run()
    template = Template(
        Group("g", "n" * 200, "", ()), 2, big(1), weight_of(big(1)), "collective", CallState.COMPLETED, is_heavy=True
    )
    add_spans(run, 0, [(template, 1, 1, 0, 0, 1, None)], 0.0)
    kept = run.ranks[0].latest["g"][1]
    assert (kept.group.id, kept.group.name, kept.signature) == ("g", "", Signature("all_reduce"))


def test_calls_that_all_differ_are_kept_up_to_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "MAX_INSTANCE_WEIGHT", 2_000)
    group = GroupState(Group("g", "0", "", tuple(range(100))), 100)
    found = [group.add(RankCall(rank, 1, "g", "collective", 1, big(rank), CallState.IN_FLIGHT)) for rank in range(100)]
    assert found.count(True) == 1
    (instance,) = group.incomplete.values()
    full = sum(bool(call.signature.input_sizes) for call in instance.all_calls())
    assert 2 <= full <= 2 + 2_000 // weight_of(big(0))
    assert group.weight < 3_000
    before = group.weight
    for rank in range(100):
        group.add(RankCall(rank, 1, "g", "collective", 1, big(rank + 100), CallState.COMPLETED, site=WIDE * 900))
    assert group.weight < before + 100 * 14
    assert group.evict() == 0
    assert group.evict(even_disagreeing=True) == 100
    assert group.weight == 0


def test_too_much_evidence_of_mismatches_is_evicted_too() -> None:
    everything = Runs(max_weight=100)
    run = run_in(everything)
    state = group_in(run, Group("g", "0", "", (0, 1, 2)))
    for number in range(20):
        for rank in range(2):
            state.add(RankCall(rank, number, "g", "collective", number, big(rank), CallState.COMPLETED))
    assert state.disagreeing == 20
    everything.trim()
    assert run.weight <= 100


def test_texts_that_outlive_their_report_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack and an exception hold until the rank moves, whatever later reports say."""
    monkeypatch.setattr(ranks_module, "MAX_REPORTED", 10_000)
    everything = Runs()
    run = run_in(everything)
    long = WIDE + "x" * 16_000
    for rank in range(200):
        take(run, rank, 1, stack=long, exception={"type": "E", "message": long})
        take(run, rank, 2)
    kept = sum(4 * (len(rank.stack) + len(rank.exception)) for rank in run.ranks.values())
    assert kept < 1.5 * 10_000 * 300
    assert run.ranks[199].stack
    assert everything.usage.reported == sum(rank.held for rank in run.ranks.values()) < 13_500
    everything.drop_ended(timeline.IDLE_FORGET + 1)
    assert everything.usage.reported == 0


def test_the_calls_of_a_report_count_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "MAX_REPORTED", 5_000)
    run = new_run()
    call = {"g": "g", "k": "collective", "op": "all_reduce", "st": "scheduled", "in": [[5] * 64] * 64}
    for rank in range(40):
        calls = [{**call, "seq": n, "rec": n, "in": [[rank, n] + [5] * 60] * 60} for n in range(10)]
        take(run, rank, 1, inflight=calls)
    last, kept = run.ranks[39].report, run.ranks[39].contents.inflight
    assert last is not None
    assert [one.signature for one in kept] == [Signature("all_reduce")] * len(kept)
    assert last.in_flight_more == 10 - len(kept)


def test_the_patterns_of_a_report_count_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "MAX_REPORTED", 5_000)
    everything = Runs()
    run = run_in(everything)
    said = [{"g": "g" + WIDE * 200, "src": 0, "dst": peer, "step": WIDE * 200} for peer in range(32)]
    for rank in range(80):
        take(run, rank, 1, patterns=said)
    kept = [len(state.patterns) for state in run.ranks.values()]
    assert (kept[0], kept[-1]) == (32, 0)
    assert sum(kept) * 2 * 4 * 200 < 5_000 * 300
    assert all(
        state.report is not None and len(state.report.patterns) == len(state.patterns) for state in run.ranks.values()
    )


def test_the_member_lists_of_one_report_are_read_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_reports, "MAX_NEW_MEMBERS", 100_000)
    groups = [{"id": f"g{n}", "ranks": f"{n}-{n + 60_000}"} for n in range(50)]
    run = new_run()
    take(run, 0, 1, groups=groups)
    found = [len(one.group.ranks) for one in run.groups.values()]
    assert found == [60_001, 60_001, *[0] * 48]


def test_results_about_large_signatures_are_not_remembered() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(200):
            lists = tuple((number, size) for size in range(1_000, 2_000))
            legal.common_part(Signature("all_gather", output_sizes=lists))
        assert tracemalloc.get_traced_memory()[0] - before < 5 * MIB
    finally:
        tracemalloc.stop()
