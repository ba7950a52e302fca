"""What NCCL's RAS says beside an incident: which answer belongs to which fault, and how much of it is kept."""

from __future__ import annotations

import dataclasses

from otel_fr_collector import timeline
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import ChangeKind
from otel_fr_collector.jobs.ras import MAX_LINE, MAX_LINES, RasAnswer, read_ras
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.outlets.incident_text import render

from otel_fr.match import Category, Finding
from otel_fr.rank_report.ras import ReportedCommunicator, ReportedFact, ReportedRas
from tests.support.evidence import WORLD, finding
from tests.support.incident_data import incident_data
from tests.support.told import new_run
from tests.support.virtual_collector import VirtualCollector

NOW = 1_800_000_000.0
HANG = finding(age=5.0, is_waiting=True)


def judged(run: Run, book: IncidentBook, *findings: Finding) -> None:
    book.update(run, findings, now=5.0, wall=NOW, enqueued={}, over=())


def answer(asked: float) -> RasAnswer:
    return RasAnswer(asked, "2.28.9", ("group default_pg (0): rank 1 did not answer",))


def test_an_answer_belongs_to_the_faults_that_had_begun_when_it_was_asked() -> None:
    book, run = IncidentBook(lambda: NOW), new_run("r0")
    judged(run, book, HANG)
    for asked, count in ((NOW - 7.0, 0), (NOW - 1.0, 1), (NOW - 1.0, 0), (NOW + 60.0, 1)):
        run.ras = answer(asked)
        changes = book.add_ras(run, 6.0)
        assert [one.kind for one in changes] == [ChangeKind.UPDATED] * count
    (incident,) = book.open_of(run.id)
    said = incident.data["nccl_ras"]
    assert said is not None
    assert said["lines"] == ["group default_pg (0): rank 1 did not answer"]
    assert said["asked_at"] == "2027-01-15T08:01:00.000Z"


def test_what_a_rank_reports_of_it_is_in_the_incident_and_no_verdict_rests_on_it() -> None:
    silent = {"kind": "silent", "ranks": "3"}
    odd = [{"id": "0x1", "size": 4, "pids": [[rank, 1000 + rank] for rank in range(4)], "facts": [silent]}]
    with VirtualCollector() as collector, collector.job(4) as job:
        job.skip(2)
        collector.wait_cause()
        job.ranks[0].extra["ras"] = {"age_s": 0.1, "nccl": "2.28.9", "count": 1, "timeouts": 1, "odd": odd}
        cause = collector.wait_cause(lambda incident: incident["nccl_ras"] is not None)
    assert (cause["category"], cause["culprit_ranks"]) == ("missing_rank", [2])
    said = cause["nccl_ras"]
    assert (len(said["lines"]), said["version"]) == (2, "2.28.9")
    assert "rank 3" in said["lines"][0]
    assert cause["waiting_since"] <= said["asked_at"]


def test_an_answer_that_came_before_the_incident_opened_is_in_it_from_the_start() -> None:
    book, run = IncidentBook(lambda: NOW), new_run("r0")
    run.ras = answer(NOW - 1.0)
    dead = dataclasses.replace(
        HANG, key="dead:7", category=Category.RANK_DEAD, group=None, sequence_id=None, is_waiting=False, age=None
    )
    follows = dataclasses.replace(HANG, key="g/collective/6", caused_by="dead:7", culprit_ranks=())
    judged(run, book, dead, follows)
    cause, consequence = book.open_of(run.id)
    assert cause.data["nccl_ras"] is not None
    assert consequence.data["nccl_ras"] is None
    old = answer(NOW - timeline.BEFORE_DETECTED - 1.0)
    assert not cause.takes_ras(old)


def test_of_an_answer_a_bounded_number_of_short_lines_is_kept() -> None:
    facts = tuple(ReportedFact("started", str(n), 0, n, f"op{n}\nx" * 9) for n in range(16))
    given = ReportedRas(2.0, "2.28.9", 40, 1, (ReportedCommunicator("0x1", 3, ((0, 7),), facts),) * 8, 32)
    found = read_ras(given, [WORLD], {0: 7}, NOW)
    assert found.asked == NOW - 2.0
    assert len(found.lines) == MAX_LINES
    assert found.lines[-1].endswith(" more")
    assert all(len(line) <= MAX_LINE and "\n" not in line for line in found.lines)
    assert found.lines[0].startswith("group default_pg (0): calls of op0 x")


def test_a_healthy_answer_says_that_no_process_is_lost() -> None:
    found = read_ras(ReportedRas(0.0, "2.31.2", 3, 0, diagnostics="ECC: one\nNVLink: two"), [], {}, NOW)
    assert found.lines[-2:] == ("NCCL's diagnostics: ECC: one", "NCCL's diagnostics: NVLink: two")
    found = read_ras(ReportedRas(0.0, "2.28.9", 3, 0), [], {}, NOW)
    assert found.lines == ("3 communicators: all ranks answered, and have started equally many calls",)


def test_what_ras_says_cannot_write_to_the_terminal() -> None:
    said = {"asked_at": None, "version": "2\x1b[2J", "lines": ["group \x1b[2Jx: rank 1 did not answer", "b"]}
    shown = render(ChangeKind.OPENED, incident_data(nccl_ras=said), now=NOW, started=None)
    assert "\x1b" not in shown
    assert "  NCCL's RAS       group " in shown
    assert "\n                   b\n" in shown
