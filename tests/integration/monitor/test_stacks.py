"""Stacks that a process sends when asked, and stacks of a process that does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_fr.monitor.process import stacks
from otel_fr.monitor.process.ending import RankProcess
from otel_fr.monitor.process.stacks import (
    ANSWER_SECONDS,
    PATIENCE_SECONDS,
    StackRequest,
    Stacks,
    in_order,
    process_hint,
)
from otel_fr.monitor.process.state import look
from otel_fr.ring import process_start_ns, process_state
from tests.support.waiting import PATIENCE, until

STUCK = """
import ctypes, faulthandler, signal, sys, threading
file = open(sys.argv[1], "w")
file.write("what was there before\\n"); file.flush()
faulthandler.register(signal.SIGUSR2, file, all_threads=True)
def other():
    threading.Event().wait()
thread = threading.Thread(target=other, daemon=True)
thread.start()
def load_batch():
    ctypes.PyDLL(None).sleep(30)
print(thread.native_id, flush=True)
load_batch()
"""

BUSY = """
import threading
print(threading.main_thread().native_id, flush=True)
while True:
    pass
"""

TRACES = """
import ctypes, os, sys
libc, pid = ctypes.CDLL(None), int(sys.argv[1])
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
attached = libc.ptrace(16, pid, None, None) == 0  # PTRACE_ATTACH
if attached:
    os.waitpid(pid, 0)
print("stopped" if attached else "refused", flush=True)
input()
"""


@pytest.fixture
def stuck(tmp_path: Path) -> object:
    script, file = tmp_path / "stuck.py", tmp_path / "stacks.txt"
    script.write_text(STUCK)
    with subprocess.Popen([sys.executable, str(script), str(file)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        thread = int(process.stdout.readline())
        yield process, {"stack_signal": int(signal.SIGUSR2), "stack_file": str(file), "responder_tid": thread}
        process.kill()


def run(request: StackRequest) -> Stacks:
    while (pause := request.step(time.monotonic())) is not None:
        time.sleep(pause)
    assert request.result is not None
    return request.result


def letter(pid: int) -> str:
    """Return the state of a process's main thread."""
    found = process_state(pid)
    assert found is not None
    return found.letter


def rank_of(pid: int) -> RankProcess:
    return RankProcess(pid, process_start_ns(pid) or 0)


def test_a_process_that_holds_the_gil_shows_its_stack(
    stuck: tuple[subprocess.Popen[bytes], dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "FILE_SECONDS", PATIENCE)  # a busy machine writes the file late, and with pauses
    monkeypatch.setattr(stacks, "QUIET_SECONDS", 0.5)
    process, meta = stuck
    until(lambda: letter(process.pid) == "S")  # in sleep()
    start = time.monotonic()
    found = run(StackRequest(rank_of(process.pid), meta, start, asked=True))
    assert found.python_blocked
    assert found.site.endswith("load_batch")
    first, second = found.text.split("\n\n")
    assert "in load_batch" in first
    assert "in other" in second
    assert "what was there before" not in found.text
    with pytest.raises(subprocess.TimeoutExpired):
        # The process still waits: a signal to the main thread would have ended its wait.
        process.wait(0.2)


def test_an_answer_in_time_sends_no_signal(stuck: tuple[subprocess.Popen[bytes], dict[str, object]]) -> None:
    process, meta = stuck
    request = StackRequest(rank_of(process.pid), meta, 100.0, asked=True)
    assert request.step(100.1) == pytest.approx(0.2)
    request.answered('File "/home/user/train.py", line 3 in load', "")
    assert request.step(100.2) is None
    assert request.result == Stacks('File "/home/user/train.py", line 3 in load', "/home/user/train.py:3 load", False)
    assert Path(str(meta["stack_file"])).read_text() == "what was there before\n"


def test_a_rank_that_waits_for_a_cpu_is_given_more_time() -> None:
    """As on a machine with more threads than CPUs. Here the answering thread runs all the time."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        meta = {"responder_tid": int(process.stdout.readline())}
        try:
            patient = StackRequest(rank_of(process.pid), meta, 100.0, asked=True)
            assert patient.step(100.0 + ANSWER_SECONDS) == pytest.approx(ANSWER_SECONDS)
            patient.answered('File "train.py", line 3 in load', "")
            given_up = StackRequest(rank_of(process.pid), meta, 100.0, asked=True)
            given_up.step(100.0 + ANSWER_SECONDS)
            given_up.step(100.0 + PATIENCE_SECONDS)
        finally:
            process.kill()
    assert patient.result is not None
    assert not patient.result.python_blocked
    assert given_up.result is not None
    assert given_up.result.python_blocked


def test_a_rank_that_py_spy_reads_is_neither_stopped_nor_blocked(
    stuck: tuple[subprocess.Popen[bytes], dict[str, object]],
) -> None:
    """A child of the monitor traces the rank, like py-spy, which stops it."""
    process, meta = stuck
    command = [sys.executable, "-c", TRACES, str(process.pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        if tracer.stdout.readline() != b"stopped\n":
            pytest.skip("processes may not be traced here")
        request = StackRequest(rank_of(process.pid), meta, 100.0, asked=True)
        assert request.step(100.0 + ANSWER_SECONDS) == pytest.approx(ANSWER_SECONDS)
        assert process_hint(process.pid) == look(process.pid) == ""
        tracer.communicate(b"\n")
    request.answered('File "train.py", line 3 in load', "")
    assert request.result is not None
    assert not request.result.python_blocked


def test_a_stopped_process_is_called_stopped(stuck: tuple[subprocess.Popen[bytes], dict[str, object]]) -> None:
    process, meta = stuck
    os.kill(process.pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        found = run(StackRequest(rank_of(process.pid), meta, time.monotonic(), asked=True))
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert found.python_blocked
    assert "stopped by a signal" in found.text


@pytest.mark.parametrize("missing", ["stack_signal", "stack_file", "responder_tid"])
def test_no_signal_is_sent_unless_the_rank_has_prepared_for_it(
    missing: str, stuck: tuple[subprocess.Popen[bytes], dict[str, object]]
) -> None:
    process, meta = stuck
    del meta[missing]
    found = run(StackRequest(rank_of(process.pid), meta, time.monotonic(), asked=False))
    assert found == Stacks("", "", True)
    assert process.poll() is None


@pytest.mark.parametrize("change", ["the default", "a handler of the program's"])
def test_no_signal_is_sent_to_a_rank_that_has_changed_its_handler(
    change: str, stuck: tuple[subprocess.Popen[bytes], dict[str, object]]
) -> None:
    """The default handler ends a process. If the program sets its own handler, the rank removes the file."""
    process, meta = stuck
    if change == "the default":
        meta["stack_signal"] = int(signal.SIGUSR1)
    else:
        Path(str(meta["stack_file"])).rename(str(meta["stack_file"]) + ".read")
    assert run(StackRequest(rank_of(process.pid), meta, time.monotonic(), asked=False)) == Stacks("", "", True)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    written = Path(str(meta["stack_file"]) + (".read" if change != "the default" else "")).read_text()
    assert written == "what was there before\n"


def test_no_signal_is_sent_to_a_later_process_of_the_same_pid(tmp_path: Path) -> None:
    """Without a handler the signal would end that process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        meta: dict[str, object] = {
            "stack_signal": int(signal.SIGUSR2),
            "stack_file": str(tmp_path / "file"),
            "responder_tid": process.pid,
        }
        (tmp_path / "file").touch()
        rank = RankProcess(process.pid, (process_start_ns(process.pid) or 0) - 10_000_000_000)
        assert run(StackRequest(rank, meta, time.monotonic(), asked=False)).python_blocked
        process.communicate(b"\n")
        assert process.returncode == 0


def test_the_main_thread_comes_first() -> None:
    text = (
        'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in worker\n\n'
        'Current thread 0x02 (most recent call first):\n  File "b.py", line 2 in main\n'
    )
    assert in_order(text).splitlines()[0] == "Current thread 0x02 (most recent call first):"
    assert in_order(text, caller=1).splitlines()[0] == "Current thread 0x02 (most recent call first):", "another's"
    assert in_order("") == ""
    assert in_order("garbage\nwithout threads") == ""


def test_the_thread_that_issues_the_calls_comes_before_the_main_thread() -> None:
    text = "\n\n".join(
        f'{head}Thread 0x{ident:016x}{name} (most recent call first):\n  File "a.py", line {ident} in {where}'
        for head, ident, name, where in [
            ("", 3, "", "other"), ("", 2, " [train]", "train"), ("Current ", 1, "", "main"),
        ]
    ).replace("Current Thread", "Current thread")  # fmt: skip
    found = [block.rpartition(" ")[2] for block in in_order(text, caller=2).split("\n\n")]
    assert found == ["train", "main", "other"]


def test_nothing_is_said_of_a_process_that_runs() -> None:
    assert process_hint(os.getpid()) == ""
