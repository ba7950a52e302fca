"""Messages tell which rank is out of step: counted like calls, and compared between ranks that run alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from otel_fr.match import Call, Category, Ending, Finding, Group, Rank
from tests.support.evidence import blamed, call, message, rank, verdict
from tests.support.verdicts import causes

PIPES = tuple(Group(f"pp{i}", f"pp{i}", "mesh_pp", (i, i + 3)) for i in range(3))
"""Three pipelines of two stages: ranks 0 to 2, and 3 to 5."""


def half(rank: int, operation: str, number: int, index: int) -> Call:
    """A send or receive to or from the other stage that is in flight for long."""
    group = PIPES[rank % 3]
    return message(rank, operation, (rank + 3) % 6, number, group=group, record=10, pair_index=index)


def at(number: int, joined: int, messages: int | None, **more: Any) -> Rank:
    info = rank(number, joined, 0, counts={PIPES[number % 3].id: (0, 0)}, **more)
    info.progress["w"].messages, info.progress[PIPES[number % 3].id].messages = 0, messages
    return info


def found_of(calls: Iterable[Call], ranks: Iterable[Rank]) -> list[Finding]:
    return causes(verdict(calls, ranks, *PIPES, size=6))


def waiting_in_the_world(*ranks: int) -> list[Call]:
    return [call(r, 1, record=11) for r in ranks]


def test_a_rank_with_fewer_messages_than_its_like_left_one_out() -> None:
    ranks = [at(r, int(r != 3), 2 if r == 0 else 3) for r in range(6)]
    (cause,) = found_of([half(3, "send", 3, 2), *waiting_in_the_world(0, 1, 2, 4, 5)], ranks)
    assert (cause.category, cause.culprit_ranks) == (Category.UNMATCHED_P2P, (0,))


def test_without_counts_the_rank_that_owes_the_other_half_is_named() -> None:
    ranks = [at(r, int(r != 3), None) for r in range(6)]
    (cause,) = found_of([half(3, "send", 3, 2), *waiting_in_the_world(0, 1, 2, 4, 5)], ranks)
    assert (cause.category, cause.culprit_ranks) == (Category.UNMATCHED_P2P, (0,))


def test_a_message_after_the_end_of_all_others_is_one_too_many() -> None:
    ranks = [at(r, 0, 3 if r == 3 else 2, ending=Ending.RUNNING if r == 3 else Ending.CLEAN) for r in range(6)]
    (cause,) = found_of([half(3, "send", 3, 2)], ranks)
    assert (cause.category, cause.culprit_ranks) == (Category.UNMATCHED_P2P, (3,))


def test_stages_that_exchange_other_numbers_of_messages_are_not_compared() -> None:
    """The first stage makes half as many messages; the collective is stalled by the network."""
    ranks = [at(r, 1, 2 if r < 3 else 4) for r in range(6)]
    (cause,) = found_of(waiting_in_the_world(*range(6)), ranks)
    assert (cause.category, cause.culprit_ranks) == (Category.STALLED_COLLECTIVE, ())


def test_a_receive_posted_early_by_every_rank_of_a_stage_accuses_none() -> None:
    """They enqueue it before the collective, their peers send after it: a program may do that."""
    ranks = [at(r, 1, 2 if r < 3 else 3) for r in range(6)]
    posted = [half(r, "recv", 3, 1) for r in (3, 4, 5)]
    found = found_of([*posted, *waiting_in_the_world(*range(6))], ranks)
    assert not any(cause.culprit_ranks for cause in found)


def test_a_receive_posted_early_by_one_rank_does_not_make_two_rivals() -> None:
    ranks = [at(r, 1, 3 if r == 3 else None) for r in range(6)]
    found = found_of([half(3, "recv", 3, 1), *waiting_in_the_world(*range(6))], ranks)
    assert not any(cause.culprit_ranks for cause in found)


# Devices.


@pytest.mark.parametrize(("ended_for", "named"), [(0.5, []), (9.0, [(0,)])])
def test_a_last_call_in_flight_after_all_others_ended_is_the_device(ended_for: float, named: list[Any]) -> None:
    """Soon after their end, the rank's report may only be older than theirs."""
    others = [rank(r, 1, ending=Ending.CLEAN, idle=0.1, ended_for=ended_for) for r in (1, 2)]
    found = blamed([call(0, 1)], [rank(0, 1, 0), *others])
    assert found == [(Category.RANK_STUCK, culprits) for culprits in named]
