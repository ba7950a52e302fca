"""What the kernel says of a process, from files as /proc has them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from otel_fr.monitor.process import state as process_state
from otel_fr.monitor.process.state import Process, SystemCall, look, mount_of, parse_call
from otel_fr.monitor.process.tcp_sockets import ESTABLISHED, SYN_SENT, TcpSocket

PID = 4711
SOCKETS = (
    TcpSocket("811", "127.0.0.1:8080", "0.0.0.0:0", 10),
    TcpSocket("812", "127.0.0.1:54000", "10.0.0.2:443", SYN_SENT),
    TcpSocket("813", "127.0.0.1:54002", "10.0.0.3:443", ESTABLISHED),
)
MOUNTS = """\
22 1 252:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:44 / /data rw,relatime shared:7 - nfs4 filer:/export rw,vers=4.2,hard
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(process_state, "read_sockets", lambda: SOCKETS)


def proc(
    tmp_path: Path, *, state: str = "S", wchan: str = "", call: str = "", tracer: int = 0, terminal: int = 0
) -> Path:
    """Files of one process with one thread."""
    folder = tmp_path / str(PID)
    thread = folder / "task" / str(PID)
    thread.mkdir(parents=True)
    (folder / "fd").mkdir()
    status = f"Name:\tpython\nState:\t{state} (whatever)\nTracerPid:\t{tracer}\n"
    status += "voluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n"
    for at in (folder, thread):
        (at / "status").write_text(status)
        (at / "stat").write_text(f"{PID} (a b) c) {state} 1 {PID} {PID} {terminal} -1 4194304\n")
    (thread / "wchan").write_text(wchan or "0")
    (thread / "syscall").write_text(call)
    (folder / "mountinfo").write_text(MOUNTS)
    return folder


def said(tmp_path: Path) -> str:
    return look(PID, tmp_path, pause=0.0)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"state": "T"}, "stopped by a signal (SIGSTOP)"),
        ({"state": "T", "terminal": 34816}, "stopped by a signal"),
        ({"state": "t", "tracer": 99}, "stopped by a debugger (process 99, gdb)"),
        ({"state": "Z"}, "a zombie: its parent has not waited for it"),
        ({"state": "R", "call": "running\n"}, "running on a CPU"),
        ({"state": "D", "wchan": "__refrigerator"}, "frozen by its cgroup"),
        ({"state": "S", "wchan": "get_signal"}, "frozen by its cgroup"),
        ({"call": "202 0x1 0x0 0x0 0x0 0x0 0x0 0x7 0x8\n", "wchan": "futex_wait_queue"}, "waiting for another thread"),
        ({"call": "230 0x0 0x0 0x7 0x7 0x0 0x0 0x7 0x8\n"}, "sleeping"),
        ({"call": "0 0x3 0x7 0x10 0x0 0x0 0x0 0x7 0x8\n", "wchan": "pipe_read"}, "reading /tmp/fifo (pipe_read)"),
        ({"call": "0 0x5 0x7 0x10 0x0 0x0 0x0 0x7 0x8\n"}, "receiving from 10.0.0.3:443"),
        ({"call": "42 0x4 0x7 0x10 0x0 0x0 0x0 0x7 0x8\n"}, "connecting to 10.0.0.2:443"),
        ({"call": "43 0x7 0x7 0x10 0x0 0x0 0x0 0x7 0x8\n"}, "waiting for a connection on 127.0.0.1:8080"),
        ({"call": "0 0x8 0x7 0x10 0x0 0x0 0x0 0x7 0x8\n"}, "receiving from a local socket"),
        ({"call": "0 0x63 0x7 0x10 0x0 0x0 0x0 0x7 0x8\n"}, "reading a file or socket"),
        ({"call": "999 0x63 0x7 0x10 0x0 0x0 0x0 0x7 0x8\n"}, "in the kernel (system call 999)"),
        ({"wchan": "hrtimer_nanosleep.constprop.0"}, "in the kernel (hrtimer_nanosleep)"),
        ({"state": "D"}, "in an uninterruptible wait in the kernel"),
        ({}, ""),
        (
            {"state": "D", "call": "0 0x6 0x7 0x10 0x0 0x0 0x0 0x7 0x8\n", "wchan": "nfs_wait_bit_killable"},
            "reading /data/x.bin on nfs4 filer:/export (the file system does not answer; nfs_wait_bit_killable)",
        ),
        (
            {"state": "D", "call": "-1 0x7 0x8\n", "wchan": "folio_wait_bit_common"},
            "waiting for a page of its memory (the file system does not answer; folio_wait_bit_common)",
        ),
        (
            {"state": "D", "call": "16 0x9 0x7 0x10 0x0 0x0 0x0 0x7 0x8\n", "wchan": "nv_wait"},
            "in the driver of /dev/nvidia0 (uninterruptible; nv_wait)",
        ),
    ],
)
def test_what_a_process_is_doing(tmp_path: Path, kind: dict[str, object], words: str) -> None:
    folder = proc(tmp_path, **kind)  # type: ignore[arg-type]
    (tmp_path / "99").mkdir()
    (tmp_path / "99" / "comm").write_text("gdb\n")
    targets = {3: "/tmp/fifo", 4: "socket:[812]", 5: "socket:[813]", 6: "/data/x.bin", 7: "socket:[811]"}
    for fd, target in {**targets, 8: "socket:[5]", 9: "/dev/nvidia0"}.items():
        os.symlink(target, folder / "fd" / str(fd))
    assert said(tmp_path) == words


def test_a_path_is_read_from_the_memory_of_the_process(tmp_path: Path) -> None:
    folder = proc(
        tmp_path, state="D", call="257 0xffffff9c 0x20 0x0 0x0 0x0 0x0 0x7 0x8\n", wchan="rpc_wait_bit_killable"
    )
    os.symlink("/data/run", folder / "cwd")
    (folder / "mem").write_bytes(b"." * 0x20 + b"part-1.bin\0rest")
    words = (
        "opening /data/run/part-1.bin on nfs4 filer:/export (the file system does not answer; rpc_wait_bit_killable)"
    )
    assert said(tmp_path) == words


def test_the_socket_of_a_poll_is_named(tmp_path: Path) -> None:
    folder = proc(tmp_path, call="7 0x10 0x1 0xffffffff 0x0 0x0 0x0 0x7 0x8\n")
    (folder / "mem").write_bytes(b"." * 0x10 + b"\x04\0\0\0\x04\0\0\0")
    os.symlink("socket:[812]", folder / "fd" / "4")
    assert said(tmp_path) == "connecting to 10.0.0.2:443"


def test_a_thread_that_runs_while_the_main_thread_waits_is_named(tmp_path: Path) -> None:
    folder = proc(tmp_path, call="202 0x1 0x0 0x0 0x0 0x0 0x0 0x7 0x8\n")
    for tid, state in ((4712, "S"), (4713, "R")):
        thread = folder / "task" / str(tid)
        thread.mkdir()
        (thread / "stat").write_text(f"{tid} (decode) {state} 1 1\n")
        (thread / "comm").write_text("decode\n")
    assert said(tmp_path) == "waiting for another thread, while its thread 4713 (decode) runs on a CPU"


def test_a_thread_that_goes_on_is_not_said_to_wait_for_a_file_system(tmp_path: Path) -> None:
    folder = proc(tmp_path, state="D", call="0 0x6 0x7 0x10 0x0 0x0 0x0 0x7 0x8\n", wchan="folio_wait_bit_common")
    os.symlink("/srv/x.bin", folder / "fd" / "6")
    process = Process(PID, tmp_path)
    now = process.sample(PID)
    text = process_state.describe(process, now._replace(switches=14), now)
    assert text == "reading /srv/x.bin (uninterruptible; folio_wait_bit_common)"


@pytest.mark.parametrize(
    ("parent", "words"), [(os.getpid(), ""), (1, "stopped by a debugger (process 99)")], ids=["own", "other"]
)
def test_what_this_process_has_started_to_read_stacks_is_no_debugger(tmp_path: Path, parent: int, words: str) -> None:
    proc(tmp_path, state="t", tracer=99)
    (tmp_path / "99").mkdir()
    (tmp_path / "99" / "status").write_text(f"PPid:\t{parent}\n")
    assert said(tmp_path) == words


def test_a_process_that_has_gone_on_is_not_stopped(tmp_path: Path) -> None:
    folder = proc(tmp_path, state="t")
    (folder / "status").write_text("State:\tS (sleeping)\nTracerPid:\t0\n")
    assert said(tmp_path) == ""


def test_a_process_that_has_gone_is_nothing(tmp_path: Path) -> None:
    assert said(tmp_path) == ""


def test_what_is_no_number_is_left_out() -> None:
    assert parse_call("") is None
    assert parse_call("running") is None
    assert parse_call("0 0xzz") is None
    assert parse_call("-1 0x7ffd 0x7f85") == SystemCall(-1)
    assert mount_of(MOUNTS, "/database/x") == ("ext4", "/dev/vda")
    assert mount_of("nonsense\n", "/x") == ("", "")
