"""A signal ends the collector within --stop-seconds in any situation, and it keeps the data that it can."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import sqlite3
import sys
import time
from pathlib import Path

import grpc
import pytest

from tests.support.collector_process import Collector, running, start
from tests.support.grpc_calls import TRACES
from tests.support.otlp_backends import grpc_backend
from tests.support.otlp_messages import spans
from tests.support.paths import ROOT
from tests.support.played_job import Job
from tests.support.ports import free_address
from tests.support.processes import children, is_gone, kill
from tests.support.waiting import PATIENCE, wait_for

STOP = ("--stop-seconds", "2")
CEILING = 35.0
"""Seconds on a busy machine for an end that should take 2 or 6 s. Without the limit it took 40 s and more."""
SLOW_JUDGE = ROOT / "tests" / "support" / "scripts" / "slow_judge.py"


def ends_in_time(collector: Collector) -> None:
    began = time.monotonic()
    assert collector.stop(signal.SIGTERM) == 0
    assert time.monotonic() - began < CEILING
    assert "Traceback" not in collector.err_file.read_text()


@pytest.mark.parametrize("where", ["loop", "aside"])
def test_a_judgement_in_progress_does_not_delay_the_end(tmp_path: Path, where: str) -> None:
    program = (sys.executable, str(SLOW_JUDGE), where)
    with (
        running(tmp_path, "--data", str(tmp_path / "data"), "--stop-seconds", "6", program=program) as collector,
        contextlib.suppress(grpc.RpcError),
        Job(collector, 2) as job,
    ):
        for rank in job.ranks:
            rank.issue(job.world)
        job.ranks[1].exit(signal=signal.SIGKILL)
        assert wait_for(lambda: "judging" in collector.out_file.read_text())
        for child in children(collector.process.pid):
            kill(child, signal.SIGTERM)  # like a signal to the process group
        ends_in_time(collector)
        text = "--stop-seconds elapsed" if where == "loop" else "1 jobs were not judged one last time"
        assert text in collector.err_file.read_text()


def test_a_killed_collector_leaves_no_child_and_its_ports_and_data_are_free(tmp_path: Path) -> None:
    options = ("--data", str(tmp_path / "data"), "--grpc", free_address(), "--http", free_address())
    program = (sys.executable, str(SLOW_JUDGE), "aside")
    with running(tmp_path / "1", *options, program=program) as first, Job(first, 2) as job:
        for rank in job.ranks:
            rank.issue(job.world)
        job.ranks[1].exit(signal=signal.SIGKILL)
        assert wait_for(lambda: "judging" in first.out_file.read_text())
        (child,) = children(first.process.pid)
        first.kill()
    with running(tmp_path / "2", *options) as second:
        assert (second.grpc, second.http) == (first.grpc, first.http)
        assert wait_for(lambda: is_gone(child))


def test_locked_files_do_not_delay_the_end(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        grpc_backend() as backend,
        running(tmp_path / "run", "--data", str(data), "--forward", backend.url, *STOP) as collector,
    ):
        collector.send(TRACES, spans(1))
        assert wait_for(lambda: backend.taken)
        with contextlib.ExitStack() as held:
            for name in ("forward.sqlite3", "incidents.db"):
                db = held.enter_context(contextlib.closing(sqlite3.connect(data / name, timeout=PATIENCE)))
                db.execute("BEGIN EXCLUSIVE")
            with grpc.insecure_channel(collector.grpc) as channel:
                calls = [channel.unary_unary(TRACES, None, None).future(spans(number)) for number in range(2, 12)]
                assert wait_for(lambda: _waits(collector))
                ends_in_time(collector)
                assert wait_for(lambda: all(call.done() for call in calls))


def _waits(collector: Collector) -> bool:
    """Return True if a request waits for the file, or has stopped waiting because it took too long."""
    flying = collector.metric("otel_fr_collector_requests_in_flight")
    return flying > 0 or "cannot use" in collector.err_file.read_text()


def test_an_incident_that_another_process_keeps_from_the_disk_is_there_after_the_end(tmp_path: Path) -> None:
    """The process locks the file while the incident opens, and releases it while the collector ends."""
    with start(tmp_path, 1, "--stop-seconds", "30") as first:
        with contextlib.closing(sqlite3.connect(tmp_path / "data" / "incidents.db", timeout=PATIENCE)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            with Job(first, 2) as job:
                job.skip(1)
                incident = first.wait_cause()
            assert first.metric("otel_fr_collector_store_up") == 0
            assert first.get("/healthz").startswith("degraded: incidents wait in memory")
            first.channel.close()
            first.process.send_signal(signal.SIGTERM)
            assert wait_for(lambda: _is_closed(first))
        assert first.process.wait(PATIENCE) == 0
    with start(tmp_path, 2) as second:
        assert incident["id"] in second.get("/api/v1/incidents")
        assert second.get("/healthz") == "ok\n"


NOHUP = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from otel_fr.cli import main
sys.exit(main())
"""


def test_one_that_was_started_to_outlast_its_terminal_does(tmp_path: Path) -> None:
    with running(tmp_path, program=(sys.executable, "-c", NOHUP)) as collector:
        collector.process.send_signal(signal.SIGHUP)
        assert collector.get("/healthz") == "ok\n"
        assert collector.stop(signal.SIGTERM) == 0


def _is_closed(collector: Collector) -> bool:
    """Return True if the collector has closed its ports. Only the last part of its end remains."""
    try:
        collector.fetch("/healthz")
    except OSError:
        return True
    return False


HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
NEEDS_UVLOOP = pytest.mark.skipif(not HAS_UVLOOP, reason="uvloop is not installed")
WITHOUT_UVLOOP = """
import sys
sys.modules["uvloop"] = None  # to import it is an ImportError
"""
LOOP = """
import asyncio, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
from otel_fr_collector.service import Service
run = Service.run
async def say(self):
    print("loop of", type(asyncio.get_running_loop()).__module__, file=sys.stderr, flush=True)
    await run(self)
Service.run = say
from otel_fr.cli import main
main()
"""


@pytest.mark.parametrize(
    ("kind", "ended_by"),
    [
        ("asyncio", signal.SIGINT),
        pytest.param("uvloop", signal.SIGTERM, marks=NEEDS_UVLOOP),
        ("asyncio", signal.SIGHUP),  # as if its terminal was closed
    ],
)
def test_it_takes_requests_judges_and_stops_on_a_signal(tmp_path: Path, kind: str, ended_by: signal.Signals) -> None:
    program = (sys.executable, "-c", LOOP if kind == "uvloop" else WITHOUT_UVLOOP + LOOP)
    with running(tmp_path, program=program) as collector:
        assert wait_for(lambda: "loop of" in collector.err_file.read_text())
        assert ("uvloop" in collector.err_file.read_text()) == (kind == "uvloop")
        collector.send(TRACES, spans(1))
        assert collector.post("/v1/traces", spans(2)).status == 200
        with Job(collector, 2) as job:
            for rank in job.ranks:
                rank.issue(job.world)
            job.ranks[1].exit(signal=signal.SIGKILL)
            assert collector.wait_cause()["culprit_ranks"] == [1]
        assert collector.stop(ended_by) == 0
        assert "Traceback" not in collector.err_file.read_text()
