"""Consequences name no culprits of their own, whether the match engine or the collector found what they follow from."""

from __future__ import annotations

import dataclasses

import pytest
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import IncidentChange
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.outlets.log import LogLines
from otel_fr_collector.web.incident_lists import Query, remembered

from otel_fr.incident import unix
from otel_fr.match import Category, Finding
from tests.support.evidence import WORLD, finding
from tests.support.told import new_run

MISSING = finding(stacks={1: "File train.py"})
STALLED = dataclasses.replace(
    MISSING,
    key="w/collective/6",
    sequence_id=6,
    culprit_ranks=(0,),
    waiting_ranks=(2,),
    stacks={0: "File train.py"},
    summary="rank 0 did not join all_reduce number 6",
)


def judged(*verdicts: list[Finding]) -> tuple[IncidentBook, Run]:
    """What the book has after these, one after the other."""
    book, run = IncidentBook(lambda: 1_000.0), new_run()
    for findings in verdicts:
        judge_again(book, run, findings)
    return book, run


def judge_again(book: IncidentBook, run: Run, findings: list[Finding]) -> list[IncidentChange]:
    return book.update(run, findings, now=0.0, wall=1_000.0, enqueued={}, over=())


def test_an_incident_that_the_book_attributes_to_an_earlier_one_has_no_culprits() -> None:
    book, _ = judged([MISSING], [STALLED])
    cause, consequence = (one.data for one in book.known())
    assert (cause["culprit_ranks"], cause["caused_by"]) == ([1], None)
    assert (consequence["culprit_ranks"], consequence["stacks"]) == ([], {})
    assert consequence["caused_by"] == cause["id"]
    assert "rank 0" in consequence["summary"], "the sentence still says for which rank the others wait"


def test_a_list_is_continued_between_the_incidents_of_one_verdict() -> None:
    book, _ = judged([MISSING, STALLED])
    before, ids = None, []
    for _ in range(2):
        ((shown, _),) = remembered(book.known(), Query(None, None, before, 1, folded=False))
        before = unix(shown["detected_at"])
        ids.append(shown["id"])
    assert ids == [one.id for one in reversed(book.known())]


def test_the_log_names_the_cause_of_a_consequence_instead_of_culprits(caplog: pytest.LogCaptureFixture) -> None:
    book, run = judged()
    cause, consequence = (judge_again(book, run, [one])[0] for one in (MISSING, STALLED))
    for change in (cause, consequence):
        LogLines().publish(change)
    first, second = caplog.messages
    assert "culprits=1" in first
    assert "culprits" not in second
    assert f"caused_by={cause.incident.id}" in second


DEAD = dataclasses.replace(
    STALLED, category=Category.RANK_DEAD, culprit_ranks=(2,), waiting_ranks=(0, 1), summary="rank 2 was killed"
)
"""In an instance of its own: rank 2 was killed while it waited, too, for the late rank 1."""
WAITING = dataclasses.replace(DEAD, category=Category.MISSING_RANK, culprit_ranks=(), caused_by=MISSING.key)


def culprits(book: IncidentBook, run: Run) -> list[tuple[int, ...]]:
    """Of the open causes."""
    return [one.finding.culprit_ranks for one in book.open_of(run.id) if one.cause is None]


SECOND = dataclasses.replace(MISSING, key=f"{MISSING.key}/beside", culprit_ranks=(3,))
"""In the same call as the first, and found with it: another rank's fault."""


@pytest.mark.parametrize("first", [[MISSING], [SECOND], [MISSING, SECOND]])
def test_two_faults_in_one_call_are_two_incidents_whichever_was_known_first(first: list[Finding]) -> None:
    assert sorted(culprits(*judged(first, [SECOND, MISSING], [SECOND, MISSING]))) == [(1,), (3,)]


def test_a_rank_that_died_while_it_waited_is_the_cause_once_the_late_rank_has_come() -> None:
    """Its wait was a consequence of the late rank, which came at last and now waits for the dead rank."""
    before: list[list[Finding]] = [[MISSING, WAITING], [MISSING, DEAD]]
    assert culprits(*judged(*before)) == [(1,)], "the late rank may be why it was killed"
    assert culprits(*judged(*before, [DEAD])) == [(2,)]
    turned = dataclasses.replace(MISSING, culprit_ranks=(), caused_by=DEAD.key)
    assert culprits(*judged(*before, [DEAD, turned])) == [(2,)]


def test_a_rank_that_gave_up_waiting_for_a_rank_is_no_cause_after_a_restart_of_the_collector() -> None:
    """The collector then knows how ranks ended, but no longer in which calls."""
    late = dataclasses.replace(MISSING, ended_ranks=(2,))
    assert culprits(*judged([late], [DEAD], [DEAD])) == [(1,)]


def test_a_death_after_the_late_rank_is_found_no_more_has_one_incident() -> None:
    again = dataclasses.replace(DEAD, key="w/collective/9", sequence_id=9)
    waits_too = dataclasses.replace(DEAD, culprit_ranks=(), caused_by=again.key)
    assert culprits(*judged([DEAD], [again, waits_too])) == [(2,)]


def test_a_finding_with_a_culprit_does_not_stay_behind_one_without() -> None:
    nameless = dataclasses.replace(MISSING, category=Category.STALLED_COLLECTIVE, culprit_ranks=())
    late = dataclasses.replace(STALLED, culprit_ranks=(0,))
    first = dataclasses.replace(late, culprit_ranks=(), caused_by=nameless.key)
    assert culprits(*judged([nameless, first])) == [()]
    assert culprits(*judged([nameless, first], [nameless, late])) == [(), (0,)]


def test_ranks_that_give_up_stay_consequences_of_the_rank_they_waited_for() -> None:
    late = dataclasses.replace(STALLED, culprit_ranks=(0,))
    first = dataclasses.replace(late, culprit_ranks=(), caused_by=MISSING.key)
    assert culprits(*judged([MISSING, first], [late])) == [(1,)]


def test_a_rank_that_fails_while_it_recovers_is_no_consequence_of_what_it_has_left() -> None:
    second = dataclasses.replace(STALLED, culprit_ranks=(2,), waiting_ranks=(0,), is_apart=True)
    first = dataclasses.replace(second, culprit_ranks=(), caused_by=MISSING.key, is_apart=False)
    book, run = judged([MISSING, first], [MISSING, second])
    assert culprits(book, run) == [(1,), (2,)]
    assert book.known()[1].data["category"] == book.open_of(run.id)[1].labels["category"]
    assert culprits(*judged([MISSING], [second])) == [(1,), (2,)]


def test_a_missed_heartbeat_and_the_wait_for_that_rank_are_one_fault_however_late_that_is_known() -> None:
    """At first rank 0 was unheard, so it was not known for whom rank 2 waited."""
    nameless = dataclasses.replace(MISSING, culprit_ranks=(), waiting_ranks=(2,))
    overdue = dataclasses.replace(
        MISSING, key="heartbeat", category=Category.HEARTBEAT_MISSED, group=None, waiting_ranks=(), sequence_id=None
    )
    named = dataclasses.replace(MISSING, category=Category.HEARTBEAT_MISSED)
    assert culprits(*judged([nameless, overdue])) == [(), (1,)]
    assert culprits(*judged([nameless, overdue], [named])) == [(1,)]
    other = dataclasses.replace(overdue, culprit_ranks=(0, 1))
    assert culprits(*judged([nameless, other], [named])) == [(1,), (0, 1)], "nobody waits for rank 0: its own fault"


DEADLOCK = dataclasses.replace(
    STALLED, category=Category.DEADLOCK, culprit_ranks=(0, 1), waiting_ranks=(0, 1), summary="0 waits for 1 for 0"
)
CREATING = dataclasses.replace(
    MISSING,
    key="w/group/1",
    stream="group",
    sequence_id=1,
    culprit_ranks=(),
    waiting_ranks=(2,),
    caused_by=DEADLOCK.key,
)
BESIDE = dataclasses.replace(CREATING, key="v/collective/1", group=dataclasses.replace(WORLD, id="v"))
CREATED = dataclasses.replace(
    CREATING, category=Category.OP_MISMATCH, field="group", culprit_ranks=(1,), caused_by=None
)
EXPLAINED = dataclasses.replace(DEADLOCK, culprit_ranks=(), caused_by=CREATED.key)


def test_a_mismatch_that_explains_a_deadlock_takes_its_place_as_the_cause() -> None:
    """Ranks waited in the creation of a group, which followed from the deadlock until the calls were known."""
    book, run = judged([DEADLOCK, CREATING, BESIDE], [CREATED, EXPLAINED])
    deadlock, created, beside = book.known()
    assert (deadlock.cause, created.cause, beside.cause) == (created.id, None, created.id)
    assert (created.data["category"], created.labels["category"]) == ("op_mismatch", "op_mismatch")
    assert created.data["culprit_ranks"] == [1]
    assert (deadlock.data["category"], deadlock.data["culprit_ranks"]) == ("deadlock", [])
    assert judge_again(book, run, [CREATED, EXPLAINED]) == [], "it is corrected once"


@pytest.mark.parametrize(
    ("waits", "ended", "causes"),
    [
        pytest.param(True, (), [(1,)], id="the ranks wait: a later verdict rests on more"),
        pytest.param(True, (0,), [(0, 1)], id="one has ended"),
        pytest.param(False, (), [(0, 1)], id="they have given up"),
    ],
)
def test_a_wait_that_explains_a_deadlock_takes_its_place_while_the_ranks_wait(
    waits: bool, ended: tuple[int, ...], causes: list[tuple[int, ...]]
) -> None:
    found = dataclasses.replace(
        CREATED, category=Category.MISSING_RANK, field=None, is_waiting=waits, ended_ranks=ended
    )
    explained = dataclasses.replace(EXPLAINED, is_waiting=waits)
    assert culprits(*judged([DEADLOCK, CREATING], [found, explained])) == causes


def test_an_incident_that_a_verdict_explains_is_not_taken_for_the_cause_of_what_explains_it() -> None:
    """The world's wait for the ranks of a sub-group opened the incident; the sub-group's own wait is known later."""
    pair = dataclasses.replace(WORLD, id="p", ranks=(0, 1))
    both = dataclasses.replace(MISSING, culprit_ranks=(0, 1), waiting_ranks=(2,))
    absent = dataclasses.replace(MISSING, key="p/collective/5", group=pair, waiting_ranks=(0,))
    follows = dataclasses.replace(both, culprit_ranks=(), caused_by=absent.key)
    book, run = judged([both], [absent, follows])
    assert culprits(book, run) == [(1,)]
    first, second = book.known()
    assert (first.cause, first.data["culprit_ranks"]) == (second.id, [])


def test_a_mismatch_that_was_told_before_an_earlier_one_of_its_group_follows_from_that() -> None:
    late = dataclasses.replace(MISSING, category=Category.SIZE_MISMATCH, field="input sizes", culprit_ranks=(2,))
    waits = dataclasses.replace(STALLED, culprit_ranks=(), caused_by=late.key)
    early = dataclasses.replace(late, key="w/collective/3", sequence_id=3, culprit_ranks=(1,))
    book, run = judged([late, waits], [early])
    assert culprits(book, run) == [(1,)]
    of_late, of_wait, of_early = book.known()
    assert (of_late.cause, of_wait.cause) == (of_early.id, of_early.id)
    both = [late, dataclasses.replace(early, culprit_ranks=(0,))]
    assert culprits(*judged([late], both)) == [(2,), (0,)], "the engine takes both for faults of their own"
