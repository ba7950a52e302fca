"""The ends of processes that are no children of the monitor."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from otel_fr.monitor.process.ending import Exit, RankProcess
from otel_fr.ring import process_start_ns
from tests.support.waiting import until

ENDINGS: list[tuple[str, int, int]] = [
    ("os._exit(0)", 0, 0),
    ("os._exit(3)", 3, 0),
    ("sys.exit(1)", 1, 0),
    ("raise SystemExit('no')", 1, 0),
    ("os.kill(os.getpid(), 9)", 0, 9),
    ("os.abort()", 0, 6),
    ("os.kill(os.getpid(), 15)", 0, 15),
    ("os.kill(os.getpid(), 11)", 0, 11),
]


def _start(code: str) -> subprocess.Popen[bytes]:
    program = f"import ctypes, os, sys; sys.stdin.read(1); {code}"
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"!")
    process.stdin.flush()


def _wait_for_end(rank: RankProcess) -> None:
    if rank.fd is not None:
        poll = select.poll()
        poll.register(rank.fd, select.POLLIN)
        assert poll.poll(10_000)
    until(lambda: not rank.alive())


@pytest.mark.parametrize(("code", "exit_code", "number"), ENDINGS)
@pytest.mark.parametrize("reaped", [False, True], ids=["zombie", "reaped"])
def test_exit_code_and_signal_are_known(code: str, exit_code: int, number: int, reaped: bool) -> None:
    with _start(code) as process:
        rank = RankProcess(process.pid, process_start_ns(process.pid) or 0)
        assert rank.alive()
        if reaped:
            process.communicate(b"!")
        else:
            _go_on(process)
        _wait_for_end(rank)
        found = rank.how_ended()
        rank.close()
    if reaped and not found.known:
        pytest.skip("this kernel does not report how a reaped process ended (Linux 6.15 does)")
    assert found == Exit(code=exit_code, signal=number, known=True)


def test_without_a_pidfd_the_ending_of_a_reaped_process_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pidfd(_pid: int) -> int:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    with _start("os._exit(3)") as process:
        rank = RankProcess(process.pid, process_start_ns(process.pid) or 0)
        assert rank.fd is None
        process.communicate(b"!")
        _wait_for_end(rank)
        assert rank.how_ended() == Exit(known=False)


def test_another_process_of_the_same_pid_is_not_the_rank() -> None:
    with _start("pass") as process:
        started = process_start_ns(process.pid) or 0
        rank = RankProcess(process.pid, started - 1_000_000_000)
        assert not rank.alive()
        assert rank.fd is None
        process.communicate(b"!")


@pytest.mark.parametrize("name", ["a) R 1 (b", "x y z", "(((", ")"])
def test_a_process_may_be_called_anything(name: str) -> None:
    with _start(f"ctypes.CDLL(None).prctl(15, {name.encode()!r}); sys.stdin.read(1); os._exit(5)") as process:
        rank = RankProcess(process.pid, process_start_ns(process.pid) or 0)
        _go_on(process)
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == f"{name}\n")
        assert rank.alive()
        _go_on(process)
        _wait_for_end(rank)
        assert rank.how_ended() == Exit(code=5, known=True)
        rank.close()


def test_a_stopped_process_is_alive() -> None:
    with _start("pass") as process:
        rank = RankProcess(process.pid, process_start_ns(process.pid) or 0)
        os.kill(process.pid, signal.SIGSTOP)
        assert rank.alive()
        os.kill(process.pid, signal.SIGCONT)
        process.communicate(b"!")
        rank.close()


@pytest.mark.parametrize(
    ("found", "said", "is_clean"),
    [
        (Exit(code=3, known=True), True, False),
        (Exit(signal=9, known=True), True, False),
        (Exit(code=0, known=True), False, True),
        (Exit(known=False), True, True),
        (Exit(known=False), False, False),
    ],
)
def test_a_known_exit_status_decides_alone_whether_the_end_was_clean(found: Exit, said: bool, is_clean: bool) -> None:
    assert found.is_clean(said=said, exit_message=None) is is_clean
