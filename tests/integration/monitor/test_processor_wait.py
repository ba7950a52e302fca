"""A real process, and another process that takes the processor from it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from otel_fr.monitor.process.processor_wait import ProcessorWait
from otel_fr.monitor.process.state import look
from otel_fr.ring import process_state
from tests.support.waiting import until

LOOP = "while True: pass"


@pytest.fixture
def starved() -> Iterator[int]:
    """The pid of a process that gets a processor only if no other process wants it, beside a process that does."""
    cpu = {min(os.sched_getaffinity(0))}
    with (
        subprocess.Popen([sys.executable, "-c", LOOP]) as other,
        subprocess.Popen([sys.executable, "-c", LOOP]) as process,
    ):
        try:
            for one in (other, process):
                os.sched_setaffinity(one.pid, cpu)
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
            yield process.pid
        finally:
            other.kill()
            process.kill()


def test_the_wait_for_a_processor_is_known_before_it_is_over(starved: int) -> None:
    wait, moved = ProcessorWait(starved), time.monotonic_ns()

    def waited() -> float:
        wait.step(time.monotonic_ns(), moved)
        return wait.seconds

    until(lambda: waited() >= 1.0)
    assert waited() >= 0.5 * (time.monotonic_ns() - moved) / 1e9
    assert look(starved).startswith("running on a CPU")


def test_a_process_that_sleeps_does_not_wait_for_a_processor() -> None:
    program = "import time; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        until(lambda: (state := process_state(one.pid)) is not None and state.letter == "S")
        wait, begun = ProcessorWait(one.pid), time.monotonic_ns()
        for _ in range(3):
            time.sleep(0.3)
            wait.step(time.monotonic_ns(), begun)
        one.kill()
    assert wait.seconds < 0.3
