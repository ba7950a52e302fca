"""A real monitor of a real process: its reports, and their times."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from otel_fr import identity
from otel_fr.dumps.read import load
from otel_fr.dumps.write import is_ours
from otel_fr.match import CallState
from otel_fr.monitor.control.verdict import ANALYSIS_SECONDS
from otel_fr.monitor.watch import LAST_FLUSH_SECONDS
from tests.support.monitored_rank import Played, play
from tests.support.otlp_messages import attributes
from tests.support.otlp_sink import Sink, grpc_sink
from tests.support.rings import RANKS
from tests.support.waiting import PATIENCE, until

STALL = 1.0
SOON = ANALYSIS_SECONDS + 5.0
"""Seconds in which a monitor ends, even if its verdict takes too long on a busy machine. A monitor that waits for its
endpoint takes `FAILED_SECONDS`."""
RUN = identity.run_id("job-7", 1, "n0")
GROUP = identity.group_id("0", RANKS)


@pytest.fixture
def sink() -> Iterator[Sink]:
    with grpc_sink() as found:
        yield found


@pytest.fixture
def rank(sink: Sink, tmp_path: Path) -> Iterator[Played]:
    with play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "RANK": "2"}) as played:
        sink.event("torch.rank.started")
        yield played


def file_of(rank: Played) -> Path:
    return rank.folder / "dumps" / "otel_fr_rank_2"


def test_spans_and_reports_arrive_with_the_rank_s_resource(sink: Sink, rank: Played) -> None:
    rank.do("issue", n=40)
    sink.wait(lambda: len(sink.spans) == 40)
    resource = sink.span_resources[0]
    job = {"torch.job.id": "job-7", "torch.job.attempt": 1, "torch.run.id": RUN, "torch.world_size": 4}
    expected = {**job, "torch.rank": 2, "host.name": "node-1", "process.pid": rank.process.pid}
    assert {name: resource[name] for name in expected} == expected
    assert resource["service.instance.id"]
    assert resource == sink.events[0].resource
    by_record = {attributes(span.attributes)["torch.collective.record_id"]: span for span in sink.spans}
    assert sorted(by_record) == list(range(40))
    for record_id, span in by_record.items():
        assert span.trace_id == identity.trace_id(RUN, GROUP, "collective", record_id + 1)
        assert span.span_id == identity.span_id(span.trace_id, 2, record_id)
        assert abs(span.start_time_unix_nano - time.time_ns()) < 60e9


def test_the_user_s_resource_attributes_are_kept(sink: Sink, tmp_path: Path) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.address,
        "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=pod%201,service.name=trainer",
    }
    with play(tmp_path, env):
        resource = sink.event("torch.rank.started").resource
    assert (resource["k8s.pod.name"], resource["service.name"]) == ("pod 1", "trainer")


def test_progress_comes_each_second_with_rising_numbers_and_true_counts(sink: Sink, tmp_path: Path) -> None:
    """The stall time is long, so that pauses of a busy machine do not make the rank report more often."""
    begun = time.monotonic()
    with play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "OTEL_FR_STALL_SECONDS": "60"}) as rank:
        rank.send_command("issue", n=30, every=0.1)
        reports = sink.events_named("torch.rank.progress", 4)
        assert all(event.at - begun >= number for number, event in enumerate(reports)), "one a second at most"
        assert rank.read()["done"] is None
        rank.do("say_bye")  # the monitor reports at once, and in full
        numbers = [event.report["n"] for event in sink.events]
        assert numbers == sorted(set(numbers))
        last = sink.event("torch.rank.progress", where=lambda r: r["groups"][0]["issued"] == 30 and "brief" not in r)
        sink.wait(lambda: len(sink.spans) == 30)
    group = last.report["groups"][0]
    expected = {"id": GROUP, "name": "0", "desc": "default_pg", "ranks": "0-3", "backend": "gloo", "gone": False}
    expected |= {"enq": 30, "done": 30, "ended": 30}
    assert {key: group[key] for key in expected} == expected
    assert last.report["last"]["rec"] == 29
    before, newest = sorted(sink.spans, key=lambda span: span.start_time_unix_nano)[-2:]
    gap = (newest.start_time_unix_nano - before.end_time_unix_nano) / 1e9
    assert last.report["last"]["gap_s"] == pytest.approx(gap, abs=1e-3)
    assert gap > 0.09
    assert last.report["stall_s"] == 60.0


def test_reports_come_quickly_around_the_time_when_verdicts_fall(sink: Sink, rank: Played) -> None:
    rank.do("issue", complete=None)
    sink.event("torch.rank.progress", where=lambda r: r["inflight"] and r["idle_s"] > 4 * STALL)
    still = [e.report["idle_s"] for e in sink.named("torch.rank.progress") if e.report["inflight"]]
    quick = [later for earlier, later in itertools.pairwise(still) if later - earlier < 0.7]
    assert len(quick) >= 2, "seven, if the machine does not hold the monitor up"
    assert (min(quick) >= 0.5 * STALL, max(quick) < 3 * STALL) == (True, True)


def test_a_stalled_call_is_reported_once_with_stacks_and_a_file(sink: Sink, rank: Played) -> None:
    rank.do("issue", n=3)
    rank.do("issue", complete=None)
    report = sink.event("torch.collective.stalled").report
    assert [(call["seq"], call["st"], call["site"]) for call in report["inflight"]] == [
        (4, "scheduled", "/home/user/train.py:42 step")
    ]
    assert report["inflight"][0]["age_s"] >= 0.8 * STALL
    assert "in main" in report["stack"]
    assert report["site"] == "train.py:7 load"
    assert report["python_blocked"] is False
    written = sink.event("torch.flight_recorder.written")
    assert written.report["file"] == written.attributes["file.path"] == str(file_of(rank))
    dump = load(file_of(rank))
    assert (dump.rank, len(dump.entries), dump.facts["reason"]) == (2, 4, "stall")
    assert "in main" in dump.text("stack")
    later = sink.event("torch.rank.progress", where=lambda r: r["n"] > report["n"] and r["idle_s"] > 2 * STALL).report
    assert later["site"] == "train.py:7 load"
    assert "stack" not in later
    assert len(sink.named("torch.collective.stalled")) == 1
    rank.do("finish")
    rank.do("say_bye")  # the monitor reports at once
    moved = sink.event("torch.rank.progress", where=lambda r: r["n"] > later["n"] and not r["inflight"]).report
    assert "site" not in moved or moved["idle_s"] >= 0.8 * STALL, "the site is of the call that has ended"


def test_an_idle_rank_is_reported_once_per_idle_time_and_no_file_is_written(sink: Sink, rank: Played) -> None:
    rank.do("issue", n=3)
    first = sink.event("torch.rank.idle", where=lambda r: r["groups"][0]["issued"] == 3 and r["idle_s"] >= 0.8 * STALL)
    assert "in main" in first.report["stack"]
    assert first.report["inflight"] == []
    rank.do("issue", n=2)
    sink.event("torch.rank.idle", where=lambda r: r["groups"][0]["issued"] == 5)
    sink.event("torch.rank.progress", where=lambda r: r["groups"][0]["issued"] == 5 and r["idle_s"] > 2 * STALL)
    assert len([e for e in sink.named("torch.rank.idle") if e.report["groups"][0]["issued"] == 5]) == 1
    assert not file_of(rank).exists()


def test_a_call_of_unknown_end_is_reported_as_unknown(sink: Sink, rank: Played) -> None:
    rank.do("issue", n=3, complete="unknown")
    report = sink.event("torch.collective.stalled").report
    assert [(call["seq"], call["st"]) for call in report["inflight"]] == [(3, "unknown")]


def test_a_rank_that_holds_the_gil_is_blocked_and_its_stack_is_known(sink: Sink, rank: Played) -> None:
    rank.send_command("hold_gil")
    assert rank.read() == {"holding": True}
    event = sink.event("torch.collective.stalled")
    assert event.report["python_blocked"] is True
    assert "in hold_gil" in event.report["stack"]
    assert event.report["site"].endswith("hold_gil")
    rank.release()
    assert rank.read() == {"done": 1}, "the rank continues unharmed"


@pytest.mark.long
def test_a_rank_that_ends_by_an_exception_and_does_not_answer_is_not_blocked(sink: Sink, rank: Played) -> None:
    rank.do("record_exception", message="bad sample 4711")
    rank.send_command("hold_gil")
    assert rank.read() == {"holding": True}
    event = sink.event("torch.collective.stalled")
    assert event.report["python_blocked"] is False
    rank.release()
    assert rank.read() == {"done": 1}


def test_the_file_of_a_stall_that_is_over_is_replaced(sink: Sink, rank: Played) -> None:
    rank.do("issue", n=3)
    rank.do("issue", complete=None)
    sink.event("torch.flight_recorder.written", where=lambda r: r["reason"] == "stall")
    rank.do("finish")
    sink.event("torch.flight_recorder.written", where=lambda r: r["reason"] == "recovered")
    assert [entry.state for entry in load(file_of(rank)).entries] == [CallState.COMPLETED] * 4


def test_the_file_of_a_stall_shows_a_clean_end_that_comes_at_once(sink: Sink, rank: Played) -> None:
    rank.do("issue", complete=None)
    sink.event("torch.flight_recorder.written", where=lambda r: r["reason"] == "stall")
    rank.send_command("finish")  # the rank continues without a pause, in which the fault would count as over
    assert rank.end("leave", clean=True) == 0
    until(lambda: load(file_of(rank)).facts.get("exit"))
    assert load(file_of(rank)).facts["exit"]["clean"] is True


def test_a_failed_call_is_reported_and_a_file_is_written(sink: Sink, rank: Played) -> None:
    rank.do("issue", n=2)
    rank.do("issue", complete="failed", timeout_ms=60_000)
    event = sink.event("torch.rank.progress", where=lambda r: r["failed"])
    assert [(call["seq"], call["st"], call["err"]) for call in event.report["failed"]] == [
        (3, "failed", "collective_failed")
    ]
    sink.event("torch.flight_recorder.written", where=lambda r: r["reason"] == "collective failed")
    assert is_ours(file_of(rank))


def test_an_exception_is_reported_while_the_rank_still_lives(sink: Sink, rank: Played) -> None:
    rank.do("issue", n=2)
    rank.do("record_exception", message="bad sample 4711")
    event = sink.event("torch.rank.exception")
    assert event.report["exception"] == {
        "type": "ValueError",
        "message": "bad sample 4711",
        "stack": "Traceback ...",
        "site": "train.py:9 load",
    }
    assert event.attributes["exception.type"] == "ValueError"
    sink.event("torch.flight_recorder.written", where=lambda r: r["reason"] == "exception")
    assert rank.end("leave", code=1) == 1
    exited = sink.event("torch.rank.exited").report
    assert exited["exception"]["message"] == "bad sample 4711"
    assert exited["exit"] == {"code": 1, "signal": 0, "clean": False, "known": True}
    assert len(sink.named("torch.rank.exception")) == 1


def test_the_exception_of_a_thread_is_reported_and_is_not_the_ranks_end(sink: Sink, rank: Played) -> None:
    rank.do("issue", n=2)
    rank.do("record_thread_exception", message="disk")
    event = sink.event("torch.rank.exception")
    raised = {"type": "OSError", "message": "disk", "site": "io.py:3 g", "thread": "loader"}
    assert (event.report["thread_exceptions"], event.report.get("exception")) == ([raised], None)
    assert (event.attributes["exception.type"], event.attributes["thread.name"]) == ("OSError", "loader")
    rank.do("record_exception", message="bad sample 4711")
    both = sink.event("torch.rank.exception", where=lambda report: "exception" in report).report
    assert (both["exception"]["message"], both["thread_exceptions"]) == ("bad sample 4711", [raised])
    assert rank.end("leave", code=1) == 1
    exited = sink.event("torch.rank.exited").report
    assert (exited["exception"]["message"], exited["thread_exceptions"]) == ("bad sample 4711", [raised])


@pytest.mark.parametrize(
    ("do", "values", "status", "expected"),
    [
        ("die", {"number": 9}, -9, {"code": 0, "signal": 9}),
        pytest.param("die", {"number": 6}, -6, {"code": 0, "signal": 6}, marks=pytest.mark.long),
        ("leave", {"code": 3}, 3, {"code": 3, "signal": 0}),
    ],
    ids=["SIGKILL", "SIGABRT", "exit 3"],
)
def test_a_rank_that_dies_leaves_its_calls_its_ending_and_a_file(
    do: str, values: dict[str, Any], status: int, expected: dict[str, int], sink: Sink, rank: Played
) -> None:
    rank.do("issue", n=5)
    rank.do("issue", complete=None)
    rank.do("issue", n=2, complete="failed")
    assert rank.end(do, **values) == status
    died = time.monotonic()
    event = sink.event("torch.rank.exited")
    assert event.at - died < SOON
    assert event.report["exit"] == {**expected, "clean": False, "known": True}
    assert event.attributes["process.exit.code"] == expected["code"]
    assert event.attributes["torch.rank.exit.signal"] == expected["signal"]
    assert [call["seq"] for call in event.report["inflight"]] == [6]
    assert [call["seq"] for call in event.report["failed"]] == [7, 8]
    assert event.report["last"]["seq"] == 8
    sink.wait(lambda: len(sink.spans) == 8)
    found = {f["torch.collective.sequence_id"]: f for f in (attributes(span.attributes) for span in sink.spans)}
    assert found[6]["error.type"] == "rank_exited"
    assert found[6]["torch.collective.state"] == "scheduled"
    sink.event("torch.flight_recorder.written", where=lambda r: r["reason"] == "crash")
    assert rank.monitor_end() < SOON
    dump = load(file_of(rank))
    assert (len(dump.entries), dump.facts["exit"].get("signal", 0)) == (8, expected["signal"])
    assert not rank.ring.exists()
    assert not (rank.folder / "stacks.txt").exists()


@pytest.mark.long
def test_a_rank_that_ends_by_itself_when_its_monitor_would_end_it_ends_once_and_for_one_reason(tmp_path: Path) -> None:
    """Ranks end shortly before and after the first signal of their monitor."""
    after = [0.4 + 0.07 * number for number in range(8)]
    env = {"OTEL_FR_ON_HANG": "kill", "OTEL_FR_EXIT_GRACE": "1"}
    with grpc_sink() as sink, ExitStack() as stack:
        env["OTEL_EXPORTER_OTLP_ENDPOINT"] = sink.address
        ranks = [
            stack.enter_context(play(tmp_path / str(rank), {**env, "RANK": str(rank)})) for rank in range(len(after))
        ]
        for played, seconds in zip(ranks, after, strict=True):
            played.send_command("overrun", timeout=0.3, seconds=seconds, code=7)
        codes = [played.process.wait(PATIENCE) for played in ranks]
        sink.wait(lambda: len(sink.named("torch.rank.exited")) == len(ranks))
        exited = {event.resource["torch.rank"]: event.report for event in sink.named("torch.rank.exited")}
        for played in ranks:
            played.monitor_end()
    assert set(codes) <= {7, -signal.SIGTERM}
    for rank, code in enumerate(codes):
        found = exited[rank]
        if found["exit"]["known"]:  # this test, its parent, may take the status before the monitor
            assert found["exit"] == {"code": max(code, 0), "signal": max(-code, 0), "clean": False, "known": True}
        # A rank may end on its own between its monitor's announcement and the signal.
        assert found.get("on_hang", "") in (("kill",) if code < 0 else ("", "kill"))
        assert "sent SIGKILL" not in ranks[rank].stderr


def test_a_clean_rank_leaves_nothing_behind(sink: Sink, rank: Played) -> None:
    rank.do("issue", n=5)
    waited = rank.do("say_bye")
    assert len(sink.spans) == 5 or waited >= LAST_FLUSH_SECONDS, "what was queued is there when the rank's wait ends"
    assert rank.end("leave", clean=True) == 0
    event = sink.event("torch.rank.exited")
    assert event.report["exit"] == {"code": 0, "signal": 0, "clean": True, "known": True}
    assert rank.monitor_end() < SOON
    assert not rank.ring.exists()
    assert not file_of(rank).exists()
    assert rank.stderr == ""


def test_a_rank_in_a_clean_state_is_no_longer_reported_idle(sink: Sink, rank: Played) -> None:
    sink.event("torch.rank.idle")
    rank.do("mark_clean")
    rank.do("issue", n=1)
    sink.event("torch.rank.progress", where=lambda r: r["groups"][0]["issued"] == 1 and r["idle_s"] > 2 * STALL)
    assert len(sink.named("torch.rank.idle")) == 1, "before it was in that state"


@pytest.mark.parametrize("how", ["signal", "rank"])
def test_a_file_is_written_when_it_is_asked_for(how: str, sink: Sink, rank: Played) -> None:
    rank.do("issue", n=5)
    if how == "signal":
        os.kill(rank.monitor, signal.SIGUSR1)
    else:
        rank.do("say", message={"cmd": "dump", "reason": "by hand"})
    written = sink.event("torch.flight_recorder.written")
    assert written.report["reason"] == ("signal" if how == "signal" else "by hand")
    assert len(load(file_of(rank)).entries) == 5


def test_what_ends_the_job_does_not_end_the_monitor(sink: Sink, rank: Played) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(rank.monitor, number)
    rank.end("die", number=9)
    assert sink.event("torch.rank.exited").report["exit"]["signal"] == 9


def test_the_monitor_may_be_killed_without_harm(sink: Sink, rank: Played) -> None:
    os.kill(rank.monitor, 9)
    rank.monitor_end()
    rank.do("issue", n=1000)
    assert rank.process.poll() is None
    assert rank.end("leave", code=0, clean=True) == 0


def test_a_rank_that_closes_its_socket_is_still_watched(sink: Sink, rank: Played) -> None:
    rank.do("hang_up")
    rank.do("issue", complete=None)
    assert sink.event("torch.collective.stalled").report["python_blocked"] is True
    rank.end("die", number=9)
    assert sink.event("torch.rank.exited").report["exit"]["signal"] == 9


def test_nonsense_on_the_socket_is_passed_over(sink: Sink, rank: Played) -> None:
    for message in ({"cmd": 7}, {"id": 1, "stacks": None}, {"stacks": "x"}, {"cmd": "none"}):
        rank.do("say", message=message)
    rank.do("issue", n=1)
    sink.wait(lambda: len(sink.spans) == 1)
    assert rank.monitor_alive()


def test_an_unwritable_folder_costs_an_error_and_keeps_the_ring(sink: Sink, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("a file where a folder should be")
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "OTEL_FR_DUMP_DIR": str(tmp_path / "plain" / "dumps")}
    with play(tmp_path, env) as rank:
        rank.do("issue", n=2)
        for number in (1, 2):
            rank.do("say", message={"cmd": "dump", "reason": str(number)})
            failed = sink.events_named("torch.flight_recorder.failed", number)[-1]
            assert failed.report["reason"] == str(number)
        assert failed.attributes["file.path"].startswith(str(tmp_path / "plain"))
        rank.end("die", number=9)
        rank.monitor_end()
        assert rank.ring.exists(), "after a crash without a file the ring is all there is"
        assert rank.stderr.count("no flight-recorder file") == 1
        assert sink.named("torch.rank.exited")


def test_without_an_endpoint_the_rank_is_still_watched_and_dumped(tmp_path: Path) -> None:
    with play(tmp_path, {"RANK": "2"}) as rank:
        rank.do("issue", complete=None)
        rank.do("say_bye")
        rank.end("die", number=9)
        rank.monitor_end()
        assert load(tmp_path / "dumps" / "otel_fr_rank_2").facts["exit"]["signal"] == 9
