"""What ``otel-fr mcp`` says of causes and consequences, and how it cuts what is too long."""

from __future__ import annotations

from otel_fr.console.client import IncidentDetail, JobDetail
from otel_fr.mcp_server.texts import MAX_CHARACTERS, capped, incident_text, rank_text, waits_text
from otel_fr.typed_json import typed
from tests.support.incident_data import incident_data

CAUSE, CONSEQUENCE = "0123456789abcdef", "fedcba9876543210"


def job() -> JobDetail:
    columns = {name: [None] * 3 for name in ("step", "waits", "overdue", "late")}
    ranks = {"rank": [0, 1, 2], "state": ["running"] * 3, "how": [""] * 3, "tally": {"running": 3}, **columns}
    known = {"job": "j", "job_title": "j", "attempt": 0, "state": "incident", "world_size": 3, "last_heard_at": None}
    return typed(JobDetail, {**known, "ranks": ranks, "groups": []})


def incident(**changed: object) -> IncidentDetail:
    return typed(IncidentDetail, {**incident_data(), "links": None, "consequences": None, **changed})


def both() -> list[IncidentDetail]:
    cause = incident(id=CAUSE, culprit_ranks=[1], waiting_ranks=[0], stacks={"1": "  first\n  second\x1b[2J\n"})
    return [cause, incident(id=CONSEQUENCE, caused_by=CAUSE, culprit_ranks=[], waiting_ranks=[2])]


def test_an_incident_that_follows_from_another_is_no_cause() -> None:
    text = incident_text(both()[1])
    assert text.startswith(f"consequence of incident {CAUSE}; ")
    assert "is a consequence, not the cause" in text


def test_who_waits_names_cause_and_consequence() -> None:
    lines = waits_text("job j", job(), both()).splitlines()
    assert any(line.startswith(f"- cause (incident {CAUSE}): rank 0 waits for rank 1.") for line in lines)
    assert any(line.startswith(f"- consequence of incident {CAUSE} (incident {CONSEQUENCE}): rank 2") for line in lines)


def test_a_rank_has_its_part_and_its_stack() -> None:
    culprit, waiting = (rank_text("job j", job(), rank, both()) or "" for rank in (1, 2))
    assert f"cause: this rank is a culprit of incident {CAUSE}" in culprit
    assert culprit.endswith("stack:\n    first\n    second\ufffd[2J")
    itself = f"which is itself a consequence of incident {CAUSE}"
    assert f"consequence of incident {CONSEQUENCE}, {itself}: this rank waits; it is not the cause" in waiting
    assert rank_text("job j", job(), 3, both()) is None


def test_a_stack_in_any_incident_is_shown() -> None:
    where = incident(culprit_ranks=[1], waiting_ranks=[0], call_sites={"0": "train.py:7 step"}, stacks={})
    known = incident(culprit_ranks=[0], stacks={"0": "train.py:9 load"})
    assert (rank_text("job j", job(), 0, [where, known]) or "").endswith("stack:\n  train.py:9 load")
    assert "call site: train.py:7 step" in (rank_text("job j", job(), 0, [where]) or "")


def test_what_is_cut_off_is_said_in_the_last_line() -> None:
    assert capped("x" * MAX_CHARACTERS, "ask less") == "x" * MAX_CHARACTERS
    cut = capped("x" * (MAX_CHARACTERS + 1), "ask less")
    assert len(cut) == MAX_CHARACTERS
    last = cut.splitlines()[-1]
    assert last == f"[TRUNCATED: the answer has {MAX_CHARACTERS + 1} characters, the first are shown; ask less]"
