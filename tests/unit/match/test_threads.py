"""Several threads of a rank in one process group: which call comes first is left to chance, on each rank anew."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from otel_fr_collector.jobs import rank_reports
from otel_fr_collector.jobs.calls import Interner
from otel_fr_collector.jobs.incomplete import merge

from otel_fr import rank_report
from otel_fr.analyze import load
from otel_fr.config import Config
from otel_fr.match import CallState, Category, Finding, Signature
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.ring import RecordState, RingReader
from tests.support.evidence import FLOAT, WORLD, call, judge, rank
from tests.support.rings import RankRing, float_signature
from tests.support.verdicts import causes

SAVE = Signature("broadcast", ((8,),), ((8,),), FLOAT, FLOAT, root=0)
SHARED, THREADS = "in the main thread and thread saver", "threads_share_group"


def swapped(threads: dict[int, tuple[str, str]], culprits: tuple[int, ...] = (0,)) -> Finding:
    """Rank 0 makes the call of its checkpoint before the all_reduce, the others after it. By rank, the threads."""
    calls = [call(r, 5, thread=threads[r][0]) for r in (1, 2)] + [call(0, 5, signature=SAVE, thread=threads[0][0])]
    calls += [call(r, 6, signature=SAVE, thread=threads[r][1]) for r in (1, 2)] + [call(0, 6, thread=threads[0][1])]
    (found,) = causes(judge(calls, [rank(r, 6) for r in range(3)], (WORLD,), 3))
    assert (found.category, found.culprit_ranks) == (Category.OP_MISMATCH, culprits)
    return found


def test_two_threads_of_a_rank_in_one_group_are_named() -> None:
    found = swapped({0: ("saver", ""), 1: ("", "saver"), 2: ("", "saver")}, (0, 1, 2))
    assert found.rule == THREADS
    assert SHARED in found.summary


def test_only_the_ranks_whose_threads_do_so_are_named() -> None:
    assert swapped({0: ("saver", ""), 1: ("", ""), 2: ("", "")}).rule == THREADS


@pytest.mark.parametrize("name", ["", "saver"])
def test_calls_of_one_thread_are_in_order(name: str) -> None:
    found = swapped(dict.fromkeys(range(3), (name, name)))
    assert found.rule == "calls_differ"
    assert not [text for text in found.details if "thread" in text]


def test_a_thread_in_a_call_of_another_group_shares_nothing() -> None:
    calls = [call(r, thread="saver") for r in (0, 1)]
    calls += [call(0, 1, CallState.COMPLETED), call(0, 1, stream="p2p", signature=Signature("send", peer=1))]
    (found,) = causes(judge(calls, [rank(r, 5) for r in (0, 1)] + [rank(2, 4)], (WORLD,), 3))
    assert not [text for text in found.details if "thread" in text]


def ring_of(folder: Path, rank: int, other: str) -> RankRing:
    """Two calls in flight: of the main thread an all_reduce, of the other one a broadcast; rank 1 began with it."""
    ring = RankRing(folder / "rings", rank, 2)
    calls = [
        ("MainThread", float_signature()),
        (other, float_signature("broadcast", root=0, reduce_op=None)),
    ]
    for ring.thread, what in reversed(calls) if rank else calls:
        ring.call(what, state=RecordState.IN_FLIGHT)
    return ring


@pytest.mark.parametrize(("other", "is_named"), [("saver", True), ("Dummy-7 (autograd)", False)])
def test_the_files_tell_threads_of_the_program_from_pytorchs(tmp_path: Path, other: str, is_named: bool) -> None:
    """Autograd makes the calls of the backward pass in a thread of its own, one after the other."""
    for number in range(2):
        ring_of(tmp_path, number, other).write(tmp_path)
    (found,) = causes(load(tmp_path).findings)
    assert found.category is Category.OP_MISMATCH
    assert (found.rule == THREADS) is is_named


def test_the_reports_tell_them_too(tmp_path: Path) -> None:
    with RingReader.open(ring_of(tmp_path, 0, "saver").writer.path) as reader:
        reporter = Reporter(reader, Config.from_env({}), Exporter(None, None))
        reporter.follow()
        text = rank_report.build(reporter.build(time.monotonic_ns()))
    calls = rank_reports.read(rank_report.parse(text), Interner(), now=100.0, wall=5e9).inflight
    assert [call.as_call(100.0).thread for call in calls] == ["", "saver"]
    span = calls[1]._replace(thread="", state=CallState.FAILED)  # which does not tell it
    assert merge(calls[1], span).thread == merge(span, calls[1]).thread == "saver"
