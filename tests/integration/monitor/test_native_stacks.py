"""Native stacks: real py-spy on real processes, and failing programs in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_fr.dumps.read import load
from otel_fr.monitor.process import native_stacks
from otel_fr.stacks import NATIVE_HEADING
from tests.support.monitored_rank import play
from tests.support.otlp_sink import grpc_sink
from tests.support.waiting import PATIENCE, until

needs_py_spy = pytest.mark.skipif(native_stacks.executable() is None, reason="py-spy is not installed")
HOLDS_GIL = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
sleep = ctypes.PyDLL(None).sleep
def hold():
    print("ready", flush=True)
    sleep(600)
hold()
"""
LOADS = """
import time
from torch.utils.data import DataLoader, Dataset
class Images(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, number):
        if number == 6:
            print("ready", flush=True)
            time.sleep(600)
        return number
for batch in DataLoader(Images(), num_workers=2):
    pass
"""
"""One worker hangs. The other has finished its work, and waits."""
COUNTS = """
import time
while True:
    print(time.monotonic(), flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", request.param]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    os.killpg(process.pid, signal.SIGKILL)  # with its workers, which hold the pipe, too
    process.communicate()


def program(folder: Path, text: str) -> str:
    path = folder / "py-spy"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{text}\n")
    path.chmod(0o755)
    return str(path)


@needs_py_spy
@pytest.mark.parametrize("started", [HOLDS_GIL], indirect=True)
def test_frames_of_c_and_python_of_a_process_that_holds_the_gil(started: subprocess.Popen[str]) -> None:
    until(lambda: Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")  # in sleep()
    found = native_stacks.take(started.pid, seconds=PATIENCE)
    assert not found.error
    heading, first, *frames = found.text.splitlines()
    assert (heading, '"MainThread"' in first) == (NATIVE_HEADING, True)
    called = [frame.split()[0] for frame in frames]
    assert called.index("sleep") < called.index("hold") < called.index("<module>")


@needs_py_spy
@pytest.mark.parametrize("started", [LOADS], indirect=True)
def test_the_worker_in_which_a_data_loader_hangs_is_shown(started: subprocess.Popen[str]) -> None:
    def shown() -> list[str]:
        look = native_stacks.NativeLook(started.pid)
        until(lambda: look.result is not None)
        assert look.result is not None
        return look.result.text.split("DataLoader worker, process ")

    # On a busy machine the other worker may not have finished its work yet.
    rank, worker = until(lambda: found if len(found := shown()) == 2 else None)
    assert "_next_data" in rank
    assert "__getitem__" in worker
    assert "sleeping" in worker.partition("\n")[0]


@needs_py_spy
@pytest.mark.parametrize("started", [COUNTS], indirect=True)
def test_a_process_runs_on_when_py_spy_is_killed_at_any_moment(started: subprocess.Popen[str]) -> None:
    assert started.stdout is not None
    errors = [native_stacks.take(started.pid, seconds=seconds).error for seconds in (0.002, 0.005, 0.01, 0.02, 0.04)]
    assert any("took longer than" in error for error in errors)
    now = time.monotonic()
    assert any(float(line) > now for line in started.stdout)


@pytest.mark.parametrize("started", [COUNTS], indirect=True)
def test_a_stopped_process_is_left_alone(started: subprocess.Popen[str], tmp_path: Path) -> None:
    started.send_signal(signal.SIGSTOP)
    until(lambda: "State:\tT" in Path(f"/proc/{started.pid}/status").read_text())
    command = program(tmp_path, f"open({str(tmp_path / 'asked')!r}, 'w')")
    assert native_stacks.take(started.pid, command) == native_stacks.Native(error="it is stopped")
    assert not (tmp_path / "asked").exists()


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    file = str(tmp_path / "pid")
    command = tmp_path / "py-spy"
    command.write_text(f"#!/bin/sh\necho $$ > {file}\necho Thread 1\nexec sleep 600\n")  # starts faster than Python
    command.chmod(0o755)
    found = native_stacks.take(os.getpid(), str(command), seconds=2.0)
    assert found == native_stacks.Native(error="py-spy took longer than 2 s")
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_of_one_that_writes_without_end_the_first_part_is_kept(tmp_path: Path) -> None:
    command = program(tmp_path, "while True: print('Thread 7 (idle): \"x\"\\n    read (libc.so.6)')")
    start = time.monotonic()
    found = native_stacks.take(os.getpid(), command, seconds=PATIENCE)
    assert time.monotonic() - start < PATIENCE
    assert found.text.startswith(f"{NATIVE_HEADING}\nThread 7")
    assert len(found.text) == native_stacks.MAX_TEXT


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("print('Permission Denied: Try again', file=sys.stderr); sys.exit(1)", "Permission Denied: Try again"),
        ("print('Error: x\\n\\nStack backtrace:\\n   0: main'); sys.exit(1)", "Error: x"),
        ("sys.exit(3)", "py-spy ended with status 3"),
        ("print('Thread 1\\n    a (b.so)'); sys.exit(1)", "Thread 1"),
    ],
)
def test_one_that_is_refused_leaves_no_stacks_and_a_reason(tmp_path: Path, text: str, error: str) -> None:
    found = native_stacks.take(os.getpid(), program(tmp_path, text), seconds=PATIENCE)
    assert (found.text, found.error.startswith(error)) == ("", True), found


def test_threads_of_otel_fr_are_left_out_and_long_functions_cut() -> None:
    output = f"""Process 7: python train.py
Thread 8 (idle): "otel-fr"
    recv (libc.so.6)
Thread 7 (idle): "MainThread"
    {"pybind11::dispatch<" * 100} (libtorch_python.so)
    main (train.py:30)
"""
    heading, thread, cut, last = native_stacks.stacks_in(output).splitlines()
    assert (heading, thread) == (NATIVE_HEADING, 'Thread 7 (idle): "MainThread"')
    assert cut.endswith("... (libtorch_python.so)")
    assert len(cut) < 250
    assert last == "    main (train.py:30)"


def test_a_program_that_cannot_be_started_is_a_reason_too(tmp_path: Path) -> None:
    (tmp_path / "py-spy").write_text("")
    assert "Permission denied" in native_stacks.take(os.getpid(), str(tmp_path / "py-spy")).error


@needs_py_spy
@pytest.mark.parametrize("choice", ["auto", "off"])
def test_a_monitor_adds_them_to_the_stacks_of_a_rank_that_holds_the_gil(tmp_path: Path, choice: str) -> None:
    with grpc_sink() as sink:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "RANK": "2", "OTEL_FR_NATIVE_STACKS": choice}
        with play(tmp_path, env) as rank:
            rank.send_command("hold_gil", seconds=30)
            assert rank.read() == {"holding": True}
            first = sink.event("torch.collective.stalled")
            if choice == "off":
                sink.event("torch.rank.progress", where=lambda report: report["idle_s"] > 6)
                assert not [event for event in sink.events if NATIVE_HEADING in event.report.get("stack", "")]
                return
            event = sink.event("torch.collective.stalled", where=lambda report: NATIVE_HEADING in report["stack"])
            python, _, native = event.report["stack"].partition(NATIVE_HEADING)
            assert python.strip() == first.report["stack"].strip()
            assert "in hold_gil" in python
            assert "sleep (libc" in native
            assert event.report["site"] == first.report["site"]
            file = rank.folder / "dumps" / "otel_fr_rank_2"
            until(lambda: file.exists() and NATIVE_HEADING in load(file).text("stack"))
