"""What the lines about the verdict say."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_fr.config import Config
from otel_fr.monitor.control.node import Node
from otel_fr.monitor.control.stderr import Stderr
from otel_fr.monitor.control.verdict import (
    CORRECTION_SECONDS,
    FILES_SECONDS,
    MAX_LINE,
    MAX_SAID,
    SETTLED_SECONDS,
    Verdict,
)
from otel_fr.monitor.rank_identity import RankIdentity
from tests.support.times import VirtualTime

FOUND: dict[str, Any] = {
    "ranks": [0, 1],
    "causes": [{"id": "ab", "category": "missing_rank", "summary": "rank 1 did not\njoin"}],
}


def verdict(folder: Path, world_size: int = 2, **config: Any) -> Verdict:
    return Verdict(Node(folder, "run", 0), Config(**config), world_size)


def lines(one: Verdict, found: dict[str, Any], file: str = "/dumps/otel_fr_rank_1") -> list[str]:
    return list(one._lines("verdict", found, Path(file)))


def test_the_first_cause_and_how_to_read_the_files(tmp_path: Path) -> None:
    assert lines(verdict(tmp_path), FOUND) == [
        "verdict: missing_rank: rank 1 did not join",
        "files of ranks 0, 1; to read them: otel-fr analyze /dumps",
    ]
    more = {**FOUND, "causes": FOUND["causes"] * 3}
    assert lines(verdict(tmp_path), more, "/my dumps/otel_fr_rank_1") == [
        "verdict: missing_rank: rank 1 did not join (and 2 more faults)",
        "files of ranks 0, 1; to read them: otel-fr analyze '/my dumps'",
    ]


def test_what_the_collector_said_counts_more_than_the_files_of_one_machine(tmp_path: Path) -> None:
    one = verdict(tmp_path, world_size=4)
    assert lines(one, FOUND)[0] == "verdict: missing_rank: rank 1 did not join"
    one.note_incident("cd", "rank 3 was killed")
    one.note_incident("ef", "later")
    assert lines(one, FOUND) == [
        "verdict: rank 3 was killed",
        "files of ranks 0, 1 of 4; to read them: otel-fr analyze /dumps; live: otel-fr incidents show cd",
    ]
    there = verdict(tmp_path, world_size=4)
    there.note_incident("cd", "rank 3 was killed", "https://fr.example/#/incidents/cd")
    assert lines(there, FOUND)[1].endswith("; live: https://fr.example/#/incidents/cd")
    whole = verdict(tmp_path)
    whole.note_incident("cd", "rank 3 was killed")
    assert lines(whole, FOUND)[0] == "verdict: missing_rank: rank 1 did not join"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, "could not analyse the files of this machine's ranks"),
        ({"causes": "x", "ranks": []}, "no fault shows in the files of this machine's ranks"),
        ({"causes": [1], "ranks": ["a"]}, "no fault shows in the files of this machine's ranks"),
    ],
)
def test_an_analysis_that_found_nothing_or_failed_still_says_where_the_files_are(
    found: dict[str, Any], text: str, tmp_path: Path
) -> None:
    first, second = lines(verdict(tmp_path), found)
    assert first == f"verdict: {text}"
    assert second.endswith("to read them: otel-fr analyze /dumps")


def test_files_with_a_prefix_are_read_with_it_and_long_lines_are_cut(tmp_path: Path) -> None:
    one = verdict(tmp_path, dump_prefix="/tmp/nccl_trace_rank_")
    assert lines(one, FOUND, "/tmp/nccl_trace_rank_1")[1].endswith("analyze /tmp --prefix nccl_trace_rank_")
    beside = lines(one, FOUND, "/tmp/otel_fr_nccl_trace_rank_1")  # the other name is PyTorch's own file
    assert beside[1].endswith("analyze /tmp --prefix otel_fr_nccl_trace_rank_")
    found = {**FOUND, "causes": [{"category": "c", "summary": "x" * 5_000 + "\x1b[2J"}]}
    assert len(lines(one, found)[0]) < MAX_LINE + 20


@pytest.mark.parametrize(
    "page",
    ["", "http://127.0.0.1:8080/#/incidents/cd", "http://localhost/x", "http://[::1]:1/", "javascript:x", "http://["],
)
def test_a_page_that_only_the_collectors_machine_reaches_is_not_told(page: str, tmp_path: Path) -> None:
    one = verdict(tmp_path, world_size=4)
    one.note_incident("cd", "rank 3 was killed", page)
    assert lines(one, FOUND)[1].endswith("; live: otel-fr incidents show cd")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    time = VirtualTime()
    monkeypatch.setattr("otel_fr.monitor.control.verdict.time", time)
    return time


def test_an_incident_is_logged_by_one_monitor_of_a_machine_once_it_has_settled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, clock: VirtualTime
) -> None:
    Node(tmp_path, "run", 0).join()
    monitors = [verdict(tmp_path) for _ in range(3)]

    def step(seconds: float) -> list[str]:
        caplog.clear()
        clock.advance(seconds)
        for one in monitors:
            one.step(None, 0, "")
        return [record.getMessage() for record in caplog.records]

    for text in ("it is not known which rank", "rank 3 was killed"):
        for one in monitors:
            one.note_incident("cd", text)
        assert step(SETTLED_SECONDS / 2) == []
    assert step(SETTLED_SECONDS) == [
        "the collector has opened an incident: rank 3 was killed (otel-fr incidents show cd)"
    ]
    for one in monitors:
        one.note_incident("cd", "rank 2 was killed")
        one.note_incident("ef", "over soon")
        one.note_incident("ef", "over soon", is_over=True)
    assert step(SETTLED_SECONDS * 1.5) == []
    assert step(SETTLED_SECONDS) == ["update from the collector: rank 2 was killed (otel-fr incidents show cd)"]
    assert lines(verdict(tmp_path, world_size=4), FOUND)[0] == "verdict: missing_rank: rank 1 did not join"
    assert lines(monitors[0], {})[0] == "verdict: rank 2 was killed"
    caplog.clear()
    for one in monitors:
        one.note_incident("cd", "rank 2 was killed", is_over=True)
    assert [record.getMessage() for record in caplog.records] == [
        "the incident is over; while it fired: rank 2 was killed (otel-fr incidents show cd)"
    ]
    assert lines(monitors[0], FOUND)[0] == "verdict: missing_rank: rank 1 did not join"


class Output(Stderr):
    """What a monitor writes at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def write(self, line: str) -> None:
        self.lines.append(line)


def test_the_verdict_at_the_end_is_corrected_once_by_what_the_collector_says_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: VirtualTime
) -> None:
    analysis = SimpleNamespace(is_over=lambda: True, result=lambda: FOUND)
    monkeypatch.setattr("otel_fr.monitor.control.verdict.Analysis", lambda *_: analysis)
    clock.sleep = clock.advance  # type: ignore[attr-defined]  # its pauses take no real time
    began = clock.monotonic()

    def end(*told: tuple[float, str]) -> list[str]:
        one, output, start = verdict(tmp_path, world_size=4), Output(), clock.monotonic()

        def poll() -> bool:
            for after, text in told:
                if clock.monotonic() - start >= after:
                    one.note_incident("cd", text)
            return True

        one._say(tmp_path / "otel_fr_rank_1", False, output, poll)
        output.close()
        return [line for line in output.lines if line.startswith("otel-fr: verdict")]

    first = "otel-fr: verdict: missing_rank: rank 1 did not join"
    assert end() == [first]
    assert end((1.0, "rank 1 did not join")) == [first]
    assert end((1.0, "n0 is lost")) == [first, "otel-fr: verdict, corrected by the collector: n0 is lost"]
    assert clock.monotonic() - began < 4 * CORRECTION_SECONDS


@pytest.mark.parametrize("stopped", [False, True])
def test_where_no_file_could_be_written_the_collectors_verdict_is_said(
    stopped: bool, tmp_path: Path, clock: VirtualTime
) -> None:
    clock.sleep = clock.advance  # type: ignore[attr-defined]  # its pauses take no real time
    one, output = verdict(tmp_path), Output()
    one.node.join()
    one.node.note_failure("", stopped=stopped)
    told = iter([(), (), ("ab", "rank 1 raised ValueError")])

    def poll() -> bool:
        one.note_incident(*found) if (found := next(told)) else None
        return True

    one.last_words(output, poll)
    said = ["otel-fr: verdict: rank 1 raised ValueError (otel-fr incidents show ab)"]
    assert output.lines == ([] if stopped else said)


def test_a_collector_cannot_fill_the_output(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, clock: VirtualTime
) -> None:
    Node(tmp_path, "run", 0).join()
    monitors = [verdict(tmp_path) for _ in range(4)]
    for number in range(100):
        monitors[number % 4].note_incident(f"incident {number}", "all is lost")
        monitors[0].log("the collector says that %s has failed", "rank 7")
    clock.advance(SETTLED_SECONDS)
    for one in monitors:
        one.step(None, 0, "")
    assert len(caplog.records) == MAX_SAID


def test_a_hang_that_a_section_explains_is_told_once_its_limit_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clock: VirtualTime
) -> None:
    excused = {**FOUND, "causes": [FOUND["causes"][0] | {"excused": True}]}
    answers = [excused, excused, FOUND]
    analyses: list[SimpleNamespace] = []

    def analysis(*_: object) -> SimpleNamespace:
        analyses.append(SimpleNamespace(is_over=lambda: True, result=lambda: answers.pop(0)))
        return analyses[-1]

    monkeypatch.setattr("otel_fr.monitor.control.verdict.Analysis", analysis)
    clock.time = clock.wall  # type: ignore[attr-defined]
    Node(tmp_path, "run", 0).join()
    one, began = verdict(tmp_path, stall_seconds=5.0), int(clock.monotonic() * 1e9)

    def step(seconds: int) -> list[str]:
        caplog.clear()
        for _ in range(2 * seconds):
            clock.advance(0.5)
            one.step(began, int(clock.monotonic() * 1e9), "/dumps/otel_fr_rank_0")
        return [record.getMessage() for record in caplog.records]

    assert step(110) == []
    assert len(analyses) == 2
    assert step(60)[0] == "this job hangs: missing_rank: rank 1 did not join"
    assert step(120) == []
    assert len(analyses) == 3
    for _ in range(2):
        one.step(None, int(clock.monotonic() * 1e9), "")
    assert [record.getMessage() for record in caplog.records] == ["the wait is over"]


def test_an_analysis_of_a_run_that_the_rank_has_left_is_ended_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clock: VirtualTime
) -> None:
    ended: list[str] = []
    analysis = SimpleNamespace(is_over=lambda: False, result=lambda: FOUND, end=lambda: ended.append("the analysis"))
    monkeypatch.setattr("otel_fr.monitor.control.verdict.Analysis", lambda *_: analysis)
    clock.time = clock.wall  # type: ignore[attr-defined]
    here, following = (Node(tmp_path, run, 0) for run in ("run", "next run"))
    here.join()
    one, began = Verdict(here, Config(stall_seconds=5.0), 1), int(clock.monotonic() * 1e9)
    for seconds in (30, FILES_SECONDS, 1):
        clock.advance(seconds)
        one.step(began, int(clock.monotonic() * 1e9), "/dumps/otel_fr_rank_0")
    assert not ended
    following.join()
    one.follow(following, 1)
    analysis.is_over = lambda: True
    one.step(None, int(clock.monotonic() * 1e9), "")
    assert ended == ["the analysis"]
    assert caplog.records == []


def test_monitors_of_the_run_before_are_asked_for_their_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *one: asked.append(one))
    here, absent = (Node(tmp_path, "run", rank) for rank in range(2))
    for node in (here, absent):
        node.join()
    one = Verdict(here, Config(stall_seconds=5.0), 2)
    following = Node(tmp_path, "next run", 0)
    following.join()
    one.follow(following, 2)
    one.step(1, int(1e12), "/dumps/otel_fr_rank_0")
    assert asked == [(os.getpid(), signal.SIGUSR1)]
    absent.leave(patient=False)


@pytest.mark.parametrize(("ends_after", "waits"), [(1.0, 1.0), (None, FILES_SECONDS)])
def test_the_verdict_waits_a_moment_for_the_file_of_a_rank_that_the_run_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: VirtualTime, ends_after: float | None, waits: float
) -> None:
    clock.sleep = clock.advance  # type: ignore[attr-defined]  # its pauses take no real time
    began, start = [], clock.monotonic()

    def analysis(*_: object) -> SimpleNamespace:
        began.append(clock.monotonic() - start)
        return SimpleNamespace(is_over=lambda: True, result=lambda: FOUND)

    def poll() -> bool:
        if ends_after is not None and clock.monotonic() - start >= ends_after:
            absent.leave(patient=False)
        return False

    monkeypatch.setattr("otel_fr.monitor.control.verdict.Analysis", analysis)
    here, absent, following = Node(tmp_path, "run", 0), Node(tmp_path, "run", 1), Node(tmp_path, "next run", 0)
    for node in (here, absent, following):
        node.join()
    one, output = Verdict(here, Config(), 2), Output()
    one.follow(following, 2)
    one._say(tmp_path / "otel_fr_rank_0", False, output, poll)
    output.close()
    assert began == [pytest.approx(waits, abs=0.05)]
    absent.leave(patient=False)


@pytest.mark.parametrize("first", [0, 1], ids=["others end first", "it ends first"])
def test_why_a_run_failed_that_lacks_a_rank_is_said_by_one_monitor_of_both_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    analysis = SimpleNamespace(is_over=lambda: True, result=lambda: FOUND | {"ranks": [0, 1, 2]})
    monkeypatch.setattr("otel_fr.monitor.control.verdict.Analysis", lambda *_: analysis)
    here, absent = monitors_of_two_runs(tmp_path, 3)
    said: list[str] = []
    order = [*((one, True) for one in here), (absent, False)]
    for one, stopped in order[::-1] if first else order:
        output = Output()
        one.follow_others()
        one.node.note_failure("/dumps/otel_fr_rank_0", stopped=stopped)
        one.last_words(output, lambda: False)
        one.leave(patient=False)
        said += output.lines
    assert said[0] == "otel-fr: verdict: missing_rank: rank 1 did not join"
    assert said[1].startswith("otel-fr: files of ranks 0-2; ")
    assert len(said) == 2
    assert all(one.node.run_id == "last run" for one in (*here, absent))
    assert bool(list(tmp_path.iterdir())) == bool(first), "a rank that may yet come does not say it again"


def test_a_rank_that_no_run_lacks_fails_by_itself(tmp_path: Path) -> None:
    _, absent = monitors_of_two_runs(tmp_path, 2)
    own = absent.node
    absent.follow_others()
    assert absent.node is own
    absent.leave(patient=False)


def monitors_of_two_runs(folder: Path, world_size: int) -> tuple[list[Verdict], Verdict]:
    """Of ranks 0 and 1 of a run, which were ranks 0 and 2 two runs before, and of rank 1 there, which is not here."""

    def joined(rank: int, run: str) -> Node:
        node = Node(folder, run, rank, size=3)
        node.join()
        return node

    zero, one, two = (Verdict(joined(rank, "run"), Config(), 3) for rank in range(3))
    runs = [("run", 3), ("next run", world_size), ("last run", world_size)]
    known = [
        RankIdentity.of({"run_id": run, "session": number, "world_size": size}, Config(), 1)
        for number, (run, size) in enumerate(runs)
    ]
    for own in known[1:]:
        for rank, verdict in enumerate((zero, two)):
            verdict.follow(node := joined(rank, own.run_id), world_size)
            node.note_earlier(known, own)
    return [zero, two], one


def test_a_rank_of_many_runs_leaves_nothing_behind_and_a_failed_run_neither(tmp_path: Path) -> None:
    def joined(rank: int, run: int) -> Node:
        node = Node(tmp_path, f"run {run}", rank, size=2)
        node.join()
        return node

    one, two = (Verdict(joined(rank, 0), Config(), 2) for rank in (0, 1))
    open_files = len(os.listdir("/proc/self/fd"))
    for number in range(1, 20):
        for rank, verdict in enumerate((one, two)):
            verdict.follow(joined(rank, number), 2)
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert len(list(tmp_path.iterdir())) == 1
    one.node.note_failure("/dumps/otel_fr_rank_0", stopped=False)
    one.leave()
    assert list(tmp_path.iterdir()), "the other has not left"
    two.leave()
    assert not list(tmp_path.iterdir())


def test_what_a_failed_run_has_said_is_kept_for_monitors_that_have_not_come(tmp_path: Path) -> None:
    node = Node(tmp_path, "run", 0, size=2)
    node.join()
    verdict = Verdict(node, Config(), 2)
    node.note_failure("", stopped=False)
    verdict.leave()
    assert list(tmp_path.iterdir())
