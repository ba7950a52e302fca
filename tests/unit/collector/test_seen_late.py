"""A recorder that is asked once a second shows a rank's wait late: the rank it waits for is named all the same."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_fr.match import Group
from tests.support.evidence import SUM, WORLD
from tests.support.scripted_job import Scripted, ScriptedJob

PAIR = Group("p", "1", "", (0, 1))
BEGIN = 3.0


@settings(max_examples=25)
@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2), st.lists(st.floats(0.02, 1.0), min_size=3, max_size=3))
def test_only_the_rank_is_named_that_a_sub_group_waits_for(seen: list[float], reports: list[float]) -> None:
    """Rank 1 is in no call; rank 0 waits for it in the pair, and rank 2 for both in the world.

    Args:
        seen: seconds after which the devices of ranks 0 and 2 are seen to have begun their calls.
    """
    calls = [Scripted(rank, WORLD, SUM, 1, 0.5, 0.6) for rank in WORLD.ranks]
    calls += [
        Scripted(0, PAIR, SUM, 1, BEGIN, begun=BEGIN + seen[0]),
        Scripted(2, WORLD, SUM, 2, BEGIN, begun=BEGIN + seen[1]),
    ]
    job = ScriptedJob(WORLD, calls, report_delay=lambda rank: reports[rank])
    assert [culprits for _, _, culprits in job.play(BEGIN + 8.0)] == [(1,)]
    assert {culprits for told in job.history for _, _, culprits in told.causes} == {(1,)}
