"""A reader in another process sees the written records, and the writer never notices the reader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from otel_fr.ring import RingWriter
from tests.support.commands import script_environment
from tests.support.paths import SCRIPTS
from tests.support.ring_model import COMPLETION_LAG, GROUP, SMALL_SITE, Program

TAIL = SCRIPTS / "ring_reader.py"


@contextmanager
def tail(writer: RingWriter, total: int, program: Program) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [str(writer.path), str(total), str(program.shapes), str(program.site_bytes)]
    process = subprocess.Popen(
        [sys.executable, str(TAIL), *arguments], stdout=subprocess.PIPE, env=script_environment()
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def write(writer: RingWriter, group: int, program: Program, start: int, stop: int) -> None:
    for number in range(start, stop):
        program.issue(writer, group, number)
        if number >= COMPLETION_LAG:
            program.complete(writer, group, number - COMPLETION_LAG)


def report(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


# A ring of 3 is overwritten all the time while it is read. Call sites of 4000 bytes make a ring flip all the time.
@pytest.mark.parametrize(("capacity", "shapes", "site_bytes"), [(3, 5, SMALL_SITE), (64, 10**9, 4000), (5000, 7, 20)])
def test_a_tailing_reader_sees_no_wrong_record(tmp_path: Path, capacity: int, shapes: int, site_bytes: int) -> None:
    program = Program(shapes, site_bytes)
    total = 20_000
    writer = RingWriter.create([tmp_path], "ring", capacity, {})
    group = writer.add_group(GROUP)
    with tail(writer, total, program) as process:
        write(writer, group, program, 0, total)
        found = report(process)
    assert found["wrong"] == []
    assert found["torn"] == 0
    assert isinstance(found["seen"], int)
    assert found["seen"] > 0
    assert found["seen"] + found["lost"] == total


def test_a_stopped_reader_does_not_stop_the_writer(tmp_path: Path) -> None:
    program = Program(7)
    total = 5_000
    writer = RingWriter.create([tmp_path], "ring", 100, {})
    group = writer.add_group(GROUP)
    with tail(writer, total, program) as process:
        write(writer, group, program, 0, 50)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        write(writer, group, program, 50, total)
        os.kill(process.pid, signal.SIGCONT)
        found = report(process)
    assert found["wrong"] == []
    assert found["seen"] + found["lost"] == total
    assert found["lost"] >= total - 200
