"""Sends and receives that are posted, and later waited for: for how long a rank waits, in any order of reports."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

from otel_fr_collector.jobs.calls import Interner, RankCall
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.rank_reports import read

from otel_fr.match import CallState, Group
from otel_fr.rank_report import parse

GROUP = Group("g", "0", "default_pg", (0, 1))
NOW = 1_000.0


def reported(now: float, **values: Any) -> RankCall:
    """What a report that arrives ``now`` says of rank 1's receive."""
    call = {"g": "g", "k": "p2p", "seq": 1, "rec": 4, "i": 0, "op": "recv", "peer": 0, "tag": 0, "st": "scheduled"}
    text = json.dumps({"v": 1, "rank": 1, "n": 1, "groups": [], "inflight": [{**call, **values}]})
    return read(parse(text), Interner(), now=now, wall=now).inflight[0]


def age(*calls: RankCall, now: float = NOW) -> float | None:
    """For how long rank 1 waits, by all of these in order."""
    state = GroupState(GROUP, 2)
    for call in calls:
        state.add(call)
    known = state.known(calls[0])
    assert known is not None
    return known.as_call(now).age


def test_a_wait_that_has_just_begun_is_no_wait_since_the_issue() -> None:
    assert age(reported(NOW, age_s=90.0, wait_s=0.0)) == 0.0


def test_a_posted_receive_waits_from_when_a_thread_waits_for_it() -> None:
    posted, waited = reported(NOW, age_s=90.0, posted=True), reported(NOW + 5, age_s=95.0, wait_s=1.0)
    assert age(posted, now=NOW + 50) == 0.0
    assert age(posted, waited, now=NOW + 50) == 46.0


def test_a_receive_that_is_reported_in_the_moment_before_it_is_known_to_be_posted_does_not_wait() -> None:
    """The recorder writes the call first, and that it is only posted a little later."""
    at_once, posted = reported(NOW, age_s=0.0), reported(NOW + 1, age_s=1.0, posted=True)
    assert age(at_once, posted, now=NOW + 50) == 0.0
    assert age(at_once, posted, reported(NOW + 9, age_s=9.0, wait_s=1.0), now=NOW + 50) == 42.0


def test_the_span_of_a_posted_receive_whose_rank_has_ended_does_not_make_it_wait() -> None:
    """It says for how long it was open, not for how long anybody waited."""
    posted = reported(NOW, age_s=90.0, posted=True)
    span = posted._replace(age=95.0)
    unknown = span._replace(state=CallState.UNKNOWN, age=None)
    for calls in permutations([posted, span]):
        assert age(*calls) == 0.0
    for calls in permutations([posted._replace(state=CallState.UNKNOWN), unknown]):
        assert age(*calls) == 0.0


def test_the_span_of_a_receive_that_was_waited_for_leaves_its_wait_as_it_is() -> None:
    waited = reported(NOW, age_s=90.0, wait_s=8.0)
    for calls in permutations([waited, waited._replace(enqueued_at=None, age=95.0)]):
        assert age(*calls) == 8.0
