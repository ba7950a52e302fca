"""The collector serves and stops alike in asyncio's event loop and in uvloop's."""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path

import pytest

from tests.support.collector_process import running
from tests.support.grpc_calls import TRACES
from tests.support.otlp_messages import spans
from tests.support.played_job import Job
from tests.support.waiting import wait_for

HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
KINDS = ("asyncio", pytest.param("uvloop", marks=pytest.mark.skipif(not HAS_UVLOOP, reason="uvloop is not installed")))
WITHOUT_UVLOOP = """
import sys
sys.modules["uvloop"] = None  # to import it is an ImportError
"""
LOOP = """
import asyncio, sys
from otel_fr_collector.service import Service
run = Service.run
async def say(self):
    print("loop of", type(asyncio.get_running_loop()).__module__, file=sys.stderr, flush=True)
    await run(self)
Service.run = say
from otel_fr.cli import main
main()
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGINT])
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
