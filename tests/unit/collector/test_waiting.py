"""How long ranks wait: a point in time that is told without a change each second; and where an alert says they run."""

from __future__ import annotations

import dataclasses

import pytest
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import ChangeKind, IncidentChange
from otel_fr_collector.outlets.alertmanager import annotations_of

from otel_fr.incident import told, told_now, unix
from otel_fr.match import Finding, Place
from tests.support.evidence import finding
from tests.support.told import new_run

NOW = 1_800_000_000.0
HANG = finding(
    call_sites={1: "data.py:9 load"},
    age=5.0,
    is_waiting=True,
    places={1: Place("gpu-17", 4711, 1), 2: Place("gpu-18", 12, 0)},
)


def judged(*findings: Finding, apart: float = 1.0) -> list[IncidentChange]:
    """The changes if the run is judged so often, ``apart`` seconds apart."""
    book, run = IncidentBook(lambda: NOW), new_run()
    changes: list[IncidentChange] = []
    for number, one in enumerate(findings):
        seconds = apart * number
        changes += book.update(run, [one], now=seconds, wall=NOW + seconds, enqueued={}, over=())
    return changes


def test_a_wait_that_goes_on_is_no_change() -> None:
    (opened,) = judged(*(dataclasses.replace(HANG, age=5.0 + second) for second in range(60)))
    assert unix(opened.data["waiting_since"]) == NOW - 5.0
    assert told(opened.data) == HANG.summary + " since 07:59:55 UTC"
    assert told_now(opened.data, NOW + 42.0) == HANG.summary + " for 47.0 s"


def test_the_begin_of_a_wait_stays_where_it_was_although_judgements_differ_a_little() -> None:
    other = dataclasses.replace(HANG, age=6.3, waiting_ranks=(0,))
    _, updated = judged(HANG, other)
    assert unix(updated.data["waiting_since"]) == NOW - 5.0


def test_ranks_that_wait_no_more_are_news_and_have_no_time_that_grows() -> None:
    ended = dataclasses.replace(HANG, is_waiting=False, summary="rank 1 did not join; ranks 0, 2 waited for 9.0 s")
    opened, updated = judged(HANG, ended)
    assert (opened.kind, updated.kind) == (ChangeKind.OPENED, ChangeKind.UPDATED)
    assert updated.data["waiting_since"] is None
    assert told(updated.data) == told_now(updated.data, NOW + 600.0) == ended.summary


def test_with_whom_a_decision_was_compared_is_news() -> None:
    """The ranks' decisions come one after the other."""
    texts = [
        f"the first decision in which rank 1 differed: clips=True; {others} False"
        for others in ("rank 0", "the others")
    ]
    opened, *updated = judged(
        *[dataclasses.replace(HANG, differed=(text,), details=(text,)) for text in [*texts, texts[1]]]
    )
    assert [one.data["details"] for one in (opened, *updated)] == [[text] for text in texts]


def test_a_resolved_incident_shows_no_time_that_grows() -> None:
    book, run = IncidentBook(lambda: NOW), new_run("r0")
    (opened,) = book.update(run, [HANG], now=0.0, wall=NOW, enqueued={}, over=())
    (resolved,) = book.update(run, [], now=9.0, wall=NOW + 9.0, enqueued={}, over={opened.incident.id})
    assert resolved.kind is ChangeKind.RESOLVED
    assert told_now(resolved.data, NOW + 600.0) == f"while it fired: {HANG.summary}"
    assert told(resolved.data) == f"while it fired: {HANG.summary} since 07:59:55 UTC"


@pytest.mark.parametrize(
    ("places", "label", "hosts"),
    [
        ({1: Place("gpu-17")}, "gpu-17", "gpu-17"),
        ({1: Place("llama-0", node="gpu-17")}, "gpu-17", "gpu-17"),
        ({1: Place("gpu-17"), 3: Place("gpu-17")}, "gpu-17", "gpu-17"),
        ({1: Place("gpu-17"), 3: Place("gpu-18")}, None, "gpu-17, gpu-18"),
        ({}, None, None),
    ],
)
def test_an_alert_has_the_host_as_a_label_if_all_culprits_are_on_it(
    places: dict[int, Place], label: str | None, hosts: str | None
) -> None:
    culprits = tuple(places) or (1,)
    (opened,) = judged(dataclasses.replace(HANG, culprit_ranks=culprits, places=places))
    assert opened.incident.labels.get("host") == label
    assert annotations_of(opened.data, {}).get("hosts") == hosts


def test_an_alert_says_which_process_is_where_and_since_when_others_wait() -> None:
    (opened,) = judged(dataclasses.replace(HANG, details=("its last call was all_reduce number 4",)))
    notes = annotations_of(opened.data, {})
    assert notes["summary"] == HANG.summary + " since 07:59:55 UTC"
    assert notes["description"] == (
        "rank 1 (gpu-17, local rank 1, pid 4711) at data.py:9 load; its last call was all_reduce number 4"
    )
    assert notes["waiting_since"] == opened.data["waiting_since"]


def test_the_label_stays_as_it_was_when_the_incident_opened() -> None:
    opened, updated = judged(dataclasses.replace(HANG, places={}), HANG)
    assert "host" not in opened.incident.labels
    assert updated.incident.labels == opened.incident.labels
    assert annotations_of(updated.data, {})["hosts"] == "gpu-17"


def test_where_a_culprit_first_differed_stays_known_once_its_peers_have_given_up() -> None:
    loop = "rank 1 has left the loop at train.py:9-12 main, in which ranks 0, 2 wait"
    hinted = dataclasses.replace(HANG, details=("it sleeps", loop), hints={"loops": (loop,)})
    over = dataclasses.replace(HANG, is_waiting=False, ended_ranks=(0, 2), details=("it slept",))
    _, updated = judged(hinted, over)
    assert updated.data["details"] == ["it slept", loop]
    _, in_another_call = judged(hinted, dataclasses.replace(over, key="w/collective/6", sequence_id=6))
    assert in_another_call.data["details"] == ["it slept"]


def test_where_a_culprit_first_differed_is_news() -> None:
    line = "the first call that rank 1 made elsewhere: number 3"
    _, updated = judged(HANG, dataclasses.replace(HANG, details=(line,), hints={"lines": (line,)}))
    assert updated.data["details"] == [line]
