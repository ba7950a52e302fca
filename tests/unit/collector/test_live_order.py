"""In the end, causes and consequences follow from all of the evidence, however late spans and reports come."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_fr.match import Group, NewGroup, Signature
from tests.support.evidence import LARGE, SUM, WORLD
from tests.support.scripted_job import RUN, Scripted, ScriptedJob
from tests.support.verdicts import causes
from tests.unit.match.test_order import GROUPS, Step, before, judged, programs

delays = st.lists(st.sampled_from([0.05, 1.0, 3.0, 6.0, 9.0]), min_size=4, max_size=4)


@settings(max_examples=30)
@given(programs, delays)
def test_mismatches_are_told_in_the_end_as_from_files(program: list[Step], late: list[float]) -> None:
    counts, calls = dict.fromkeys(GROUPS, 0), []
    for step, (name, odd) in enumerate(program):
        counts[name] += 1
        for rank in GROUPS[name].ranks:
            begun = 1.0 + 0.3 * step
            signature = LARGE if rank in odd else SUM
            calls.append(Scripted(rank, GROUPS[name], signature, counts[name], begun, begun + 0.2))
    job = ScriptedJob(GROUPS["w"], calls, span_delay=lambda rank: late[rank])
    job.play(18.0)
    known = job.service.book.open_of(RUN)
    key_of = {incident.id: incident.finding.key for incident in known}
    live = {one.finding.key: key_of[one.cause] if one.cause else None for one in known if one.finding.field}
    order = before(program, frozenset())
    assert not any((key, cause) in order for key, cause in live.items())
    from_files = {finding.key for finding in causes(judged(program)) if finding.field}
    assert {key for key, cause in live.items() if cause is None} == from_files


PAIR, ALL = Group("s", "1", "tp", (0, 1)), Group("b", "1", "tp", (0, 1, 2))
GIVES_UP = 8.0


def created(ranks: tuple[int, ...]) -> Signature:
    return Signature("new_group", new_group=NewGroup("1", "tp", ranks, False))


@given(
    st.sampled_from([0.3, 2.0, 4.0, 6.0]),
    st.booleans(),
    st.lists(st.sampled_from([0.05, 1.0, 3.0, 6.0, 9.0]), min_size=3, max_size=3),
    st.lists(st.sampled_from([0.02, 0.5, 2.0]), min_size=3, max_size=3),
    st.sampled_from([0.0, 1.0, 3.0, 5.0]),
)
def test_a_deadlock_that_was_told_first_follows_from_the_creation_of_the_group(
    comes: float, connects: bool, spans: list[float], reports: list[float], heard: float
) -> None:
    """Rank 1 creates the group without rank 2, which comes late: ranks 0 and 1 wait for each other in two groups.

    Args:
        comes: when rank 2 does. connects: rank 0 gets its group without rank 2. heard: when rank 2 first reports.
    """
    calls, raises, stopped = [], {}, {}
    for rank, group in ((0, ALL), (1, PAIR), (2, ALL)):
        begun = comes if rank == 2 else 0.2
        done = begun + 0.1 if connects or rank == 1 else max(comes, 0.2) + 0.1
        calls.append(Scripted(rank, WORLD, created(group.ranks), 1, begun, done, "group"))
        calls.append(Scripted(rank, group, SUM, 1, done, done + GIVES_UP, error="timeout"))
        raises[rank] = done + GIVES_UP + 0.3
    first = min(raises.values()) + 0.3
    stopped = {rank: first for rank, moment in raises.items() if moment > first}  # by the launcher
    raises = {rank: moment for rank, moment in raises.items() if rank not in stopped}
    job = ScriptedJob(
        WORLD,
        calls,
        raises=raises,
        stopped=stopped,
        begins={2: heard},
        report_delay=lambda rank: reports[rank],
        span_delay=lambda rank: spans[rank],
    )
    assert [(category, culprits) for _, category, culprits in job.play(22.0)] == [("op_mismatch", (1,))]


@pytest.mark.parametrize("spans", [0.05, 4.0])
def test_a_correction_keeps_the_incident_that_was_told_first(spans: float) -> None:
    """Rank 0 waits in the creation, which rank 1 has left: a deadlock as long as rank 1's spans were on their way."""
    calls = [
        Scripted(0, WORLD, created((0, 1, 2)), 1, 0.2, None, "group"),
        Scripted(1, WORLD, created((0, 1)), 1, 0.2, 0.3, "group"),
        Scripted(1, PAIR, SUM, 1, 0.3),
        Scripted(2, WORLD, created((0, 1, 2)), 1, 1.0, None, "group"),
    ]
    job = ScriptedJob(WORLD, calls, span_delay=lambda _: spans)
    ((number, category, culprits),) = job.play(12.0)
    told = {one[0] for moment in job.history for one in moment.causes}
    assert (category, culprits, told) == ("op_mismatch", (1,), {number})


@given(
    st.sampled_from([(), (2,), (1, 2)]),
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 4.0, 7.0, 10.0]), min_size=4, max_size=4),
    st.lists(st.sampled_from([0.5, 1.0, 1.5]), min_size=4, max_size=4),
    st.sampled_from([2.0, 5.0]),
)
def test_ranks_that_are_heard_of_late_are_not_named_and_correct_what_was_told_before(
    missing: tuple[int, ...], heard: list[float], joins: list[float], stall: float
) -> None:
    """As in the first seconds of a job on a busy machine, where monitors begin to report one by one."""
    world = GROUPS["w"]
    calls = [Scripted(rank, world, SUM, 1, 0.2, 0.3) for rank in range(4)]
    ended = None if missing else max(joins) + 0.1
    calls += [Scripted(rank, world, SUM, 2, joins[rank], ended) for rank in range(4) if rank not in missing]
    job = ScriptedJob(
        world, calls, stall=stall, begins=dict(enumerate(heard)), span_delay=lambda rank: heard[rank] + 0.05
    )
    final = job.play(max(heard) + 2 * stall + 3.0)
    assert {culprits for _, _, culprits in final} == ({missing} if missing else set())
    told = [cause for moment in job.history for cause in moment.causes]
    assert {rank for _, _, culprits in told for rank in culprits} <= set(missing)
    assert len({number for number, _, _ in told}) <= 1, "one incident, corrected"


def test_an_incident_without_a_culprit_is_corrected_when_ranks_are_heard() -> None:
    world = GROUPS["w"]
    calls = [Scripted(rank, world, SUM, 1, 0.5) for rank in (0, 1, 3)]
    job = ScriptedJob(world, calls, begins={1: 6.0, 2: 7.0, 3: 6.5})
    job.play(5.0)
    (incident,) = job.service.book.open_of(RUN)
    assert (incident.finding.culprit_ranks, incident.finding.waiting_ranks) == ((), (0,))
    job = ScriptedJob(world, calls, begins={1: 6.0, 2: 7.0, 3: 6.5})
    job.play(16.0)
    (corrected,) = job.service.book.open_of(RUN)
    assert (corrected.id, corrected.finding.culprit_ranks) == (incident.id, (2,))
    assert corrected.finding.waiting_ranks == (0, 1, 3)
