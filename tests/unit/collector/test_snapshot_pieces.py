"""A snapshot of a large run is taken in pieces: other tasks have their turn between two, and may add to the run."""

from __future__ import annotations

from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.snapshot import PIECE, in_pieces, snapshot

from tests.support.told import apply, new_run

NOW = 100.0
RANKS = 2 * PIECE + 10


def run_of(count: int) -> Run:
    run = new_run("r0", world_size=count)
    for rank in range(count):
        report(run, rank, 1, NOW - 0.1)
    return run


def report(run: Run, rank: int, number: int, at: float) -> None:
    assert apply(run, rank, number, at, idle_s=0.1)


def test_the_pieces_together_are_the_snapshot_that_is_taken_at_once() -> None:
    run = run_of(RANKS)
    *pauses, taken = in_pieces(run, NOW)
    assert pauses == [None, None]
    assert taken == snapshot(run, NOW)


def test_a_small_run_is_taken_without_a_pause() -> None:
    assert [taken is None for taken in in_pieces(run_of(PIECE - 1), NOW)] == [False]


def test_reports_and_ranks_that_arrive_in_a_pause_are_taken_or_left_to_the_next_snapshot() -> None:
    run = run_of(RANKS)
    pieces = in_pieces(run, NOW)
    assert next(pieces) is None
    report(run, 0, 2, NOW + 0.1)
    report(run, RANKS - 1, 2, NOW + 0.1)
    report(run, RANKS, 1, NOW + 0.1)
    assert next(pieces) is None
    taken = next(pieces)
    assert taken is not None
    assert len(taken.ranks) == RANKS
    assert (taken.reported_at[0], taken.reported_at[RANKS - 1]) == (NOW - 0.1, NOW + 0.1)
    assert taken.ranks[RANKS - 1].idle == 0.1, "no time has passed since"
