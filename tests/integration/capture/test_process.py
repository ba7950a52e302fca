"""The rank's process and its monitor: the monitor's start, messages to it, and the rank's end."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support import single_rank
from tests.support.otlp_sink import grpc_sink
from tests.support.single_rank import PLAYED
from tests.support.waiting import PATIENCE, until

TORCH = tuple(int(part) for part in version("torch").split("+")[0].split(".")[:2])

MONITORED = f"""
def until(condition):
    deadline = time.monotonic() + {PATIENCE}
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
start()
found = ring()
until(lambda: found.monitor_pid)
"""


def monitors(ring: Path) -> list[int]:
    """Return the processes that were started as a ring's monitor."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(ring).encode() in arguments and arguments[0] == sys.executable.encode():
                found.append(int(entry.name))
    return found


def test_the_monitor_is_not_a_child_of_the_rank_and_holds_nothing_of_the_job(tmp_path: Path) -> None:
    # Modules of the job, with the names of modules that the monitor needs.
    for name in ("argparse", "json", "grpc"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    # The program itself must not import them from its own folder either.
    program = single_rank.write(tmp_path, "", "unused.py")
    body = program.read_text().replace("import contextlib, json,", "import contextlib,")
    program.write_text(
        "import sys; sys.path.pop(0)\n"
        + body
        + "held = socket.socket(); held.bind(('127.0.0.1', 0)); held.listen(); held.set_inheritable(True)\n"
        + "start()\n"
        + "print(os.getpid(), hook._state.session._writer.path, os.fstat(held.fileno()).st_ino, flush=True)\n"
        + "sys.stdin.read()\n"
    )
    rank = subprocess.Popen(
        [sys.executable, str(program)],
        env=single_rank.environment(tmp_path, OTEL_FR_ENABLED="1"),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert rank.stdout is not None
        pid, ring, inode = rank.stdout.readline().split()
        (monitor,) = until(lambda: monitors(Path(ring)))
        proc = Path(f"/proc/{monitor}")
        until(lambda: ring in (proc / "maps").read_text())
        files = [os.readlink(entry) for entry in (proc / "fd").iterdir() if entry.is_symlink()]
        assert f"socket:[{inode}]" not in files
        assert f"PPid:\t{pid}\n" not in (proc / "status").read_text()
        assert os.getsid(monitor) != os.getsid(int(pid))
        assert os.getpgid(monitor) != os.getpgid(int(pid))
        assert "libtorch" not in (proc / "maps").read_text()
        rank.communicate("", timeout=PATIENCE)
        assert rank.returncode == 0
        until(lambda: not monitors(Path(ring)))
        assert not Path(ring).exists()
    finally:
        rank.kill()


@pytest.mark.usefixtures("warm")
def test_where_the_rank_is(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        PLAYED
        + """
for nonsense in (b"no json", b"[1, 2]", b'{"cmd": "sing"}', b"\\xff" * 1000):
    theirs.send(nonsense)
def deep_inside():
    theirs.send(json.dumps({"cmd": "stacks", "id": 5}).encode() + b"\\n")
    return hear()
answer = deep_inside()
print(answer["id"], answer["site"].split(":")[0].endswith("program.py"), answer["site"].split()[-1])
print(answer["stacks"].splitlines()[0])
print("deep_inside" in answer["stacks"], "responder" in answer["stacks"])
import otel_fr
otel_fr.dump("because")
print(hear())
theirs.close()
""",
    )
    lines = out.splitlines()
    assert lines[0] in ("5 True hear", "5 True deep_inside")
    assert lines[1] == "Thread MainThread (most recent call last):"
    assert lines[2] == "True False"
    assert lines[3] == "{'cmd': 'dump', 'reason': 'because'}"


@pytest.mark.usefixtures("warm")
def test_the_rank_waits_at_its_end_for_the_monitor(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        PLAYED
        + """
session_module.EXIT_SECONDS = 20.0  # a busy machine may not let the monitor answer within two seconds
def monitor():
    print(hear(), flush=True)
    time.sleep(0.3)
    print("flushed", flush=True)
    theirs.send(b'{"ok": "bye"}\\n')
threading.Thread(target=monitor, daemon=True).start()
dist.all_reduce(torch.ones(2))
""",
    )
    assert out == "{'cmd': 'bye'}\nflushed\n"


@pytest.mark.usefixtures("warm")
def test_the_wait_for_the_monitor_is_bounded(tmp_path: Path) -> None:
    ends = 'import atexit\natexit.register(lambda: print("ended"))\n'
    assert single_rank.succeed(tmp_path, ends + PLAYED) == "ended\n"


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    "before",
    [
        pytest.param("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", id="ignored"),
        pytest.param(
            "signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG))", id="a handler that waits for all"
        ),
        pytest.param(
            "def reap():\n    while True:\n        with contextlib.suppress(ChildProcessError):\n"
            "            os.waitpid(-1, 0)\n        time.sleep(0.001)\n"
            "threading.Thread(target=reap, daemon=True).start()",
            id="a thread that waits for all",
        ),
    ],
)
def test_a_job_that_waits_for_every_child_has_a_monitor(tmp_path: Path, before: str) -> None:
    shows = """
ignored = int(open(f"/proc/{found.monitor_pid}/status").read().split("SigIgn:")[1].split()[0], 16)
print(found.monitor_pid > 0, bool(ignored & 1 << signal.SIGCHLD - 1))
"""
    done = single_rank.run(tmp_path, before + MONITORED + shows)
    assert (done.returncode, done.stdout) == (0, "True False\n"), done.stderr
    assert "no monitor" not in done.stderr


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("ends_well", [True, False])
def test_a_rank_whose_monitor_was_killed_removes_its_files_if_it_ends_cleanly(tmp_path: Path, ends_well: bool) -> None:
    done = single_rank.run(
        tmp_path,
        MONITORED
        + f"""
dist.all_reduce(torch.ones(2))
left = lambda: sorted(path.suffix for path in hook._state.session._writer.path.parent.iterdir() if path.is_file())
print(left())
os.kill(found.monitor_pid, signal.SIGKILL)
until(lambda: hook._state.session._responder.has_lost_monitor)
hook._state.session._monitors = 99  # no other one is started
{"" if ends_well else "raise ValueError('bad sample')"}
""",
    )
    assert (done.returncode, done.stdout) == (0 if ends_well else 1, "['.ring', '.stacks']\n"), done.stderr
    assert sorted(path.suffix for path in tmp_path.glob("otel-fr-*/*") if path.is_file()) == (
        [] if ends_well else [".ring", ".stacks"]
    )


@pytest.mark.usefixtures("warm")
def test_a_monitor_that_died_costs_nothing(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        PLAYED
        + """
session_module.EXIT_SECONDS = 1_000.0  # a wait for it would not end within the test
theirs.close()
dist.all_reduce(torch.ones(2))
print("ends")
""",
    )
    assert out == "ends\n"


PAIR = """
from datetime import timedelta
rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2], 2)
store.add("here", 1)
while store.add("here", 0) < 2:  # the timeout, which may be short, is not for the start of the other process
    time.sleep(0.01)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=float(sys.argv[4])))
case, tensor = sys.argv[3], torch.ones(3)
dist.all_reduce(tensor)
if rank == 0:
    if case == "timeout":
        try:
            dist.all_reduce(tensor)
        except RuntimeError:
            print("timed out")
    else:
        work = dist.all_reduce(tensor, async_op=True)
        print("leaving", flush=True)
        if case == "raises":
            raise ValueError("gives up")
        if case == "exits":
            sys.exit(3)
else:
    sys.stdin.readline()
    if case == "late":
        dist.all_reduce(tensor)
        print(tensor.tolist())
    dist.destroy_process_group()
"""


def run_pair(folder: Path, case: str, enabled: str, timeout: float) -> tuple[list[int], list[str], float]:
    """Run two ranks. The second continues after the first's end. Return exit codes, outputs, and that end's seconds.

    torch itself, also without otel-fr, sometimes aborts at exit when a gloo thread drops the last reference to a
    tensor. The pair then runs again, so that only repeated results count.
    """
    for number in range(3):
        found = _run_pair(folder / str(number), case, enabled, timeout)
        if -signal.SIGABRT not in found[0]:
            break
    return found


@functools.cache
def run_pair_without_us(case: str, timeout: float) -> tuple[list[int], list[str], float]:
    """Like `run_pair`, without otel-fr, and only once for both engines."""
    with tempfile.TemporaryDirectory() as folder:
        return run_pair(Path(folder), case, "0", timeout)


def _run_pair(folder: Path, case: str, enabled: str, timeout: float) -> tuple[list[int], list[str], float]:
    folder.mkdir(parents=True)
    program = single_rank.write(folder, PAIR)
    rest = [str(folder / "store"), case, str(timeout)]
    ranks = [
        single_rank.begin(program, str(rank), *rest, stderr=subprocess.DEVNULL, OTEL_FR_ENABLED=enabled)
        for rank in range(2)
    ]
    try:
        assert ranks[0].stdout is not None
        first = ranks[0].stdout.readline()
        begin = time.monotonic()
        if case == "late":
            time.sleep(2.5)  # longer than otel-fr may delay an exit
        else:
            ranks[0].wait(PATIENCE)
        ended = time.monotonic() - begin
        second, _ = ranks[1].communicate("\n", timeout=PATIENCE)
        ranks[0].wait(PATIENCE)
        return [rank.returncode for rank in ranks], [first, second], ended
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize(
    ("case", "timeout", "codes"),
    [
        pytest.param("timeout", 2, [0, 0], marks=pytest.mark.long),
        pytest.param("late", 60, [0, 0], marks=pytest.mark.long),
        ("exits", 4, [3, 0]),
    ],
)
@pytest.mark.usefixtures("each_engine")
def test_exit_codes_are_what_they_are_without_us(tmp_path: Path, case: str, timeout: float, codes: list[int]) -> None:
    with_us = run_pair(tmp_path / "with", case, "1", timeout)
    without = run_pair_without_us(case, timeout)
    assert with_us[0] == codes
    # docs/reference/compatibility.md: torch 2.14 alone does not wait at exit for a collective in flight.
    if case != "late" or TORCH < (2, 14):
        assert without[:2] == (codes, with_us[1])


@pytest.mark.usefixtures("each_engine")
def test_a_rank_that_raises_does_not_wait_for_its_peers(tmp_path: Path) -> None:
    codes, _, seconds = run_pair(tmp_path / "raises", "raises", "1", 60)
    assert codes == [1, 0]
    assert seconds < 45  # the timeout of its groups is 60 s


def test_a_monitor_that_is_killed_is_replaced_and_the_rank_is_watched_on(tmp_path: Path) -> None:
    program = single_rank.write(
        tmp_path,
        MONITORED
        + """
for _ in range(3):
    dist.all_reduce(torch.ones(2))
first = found.monitor_pid
sys.stdin.readline()
os.kill(first, signal.SIGKILL)
until(lambda: found.monitor_pid not in (0, first))
for _ in range(2):
    dist.all_reduce(torch.ones(3))
os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    with grpc_sink() as sink:
        rank = single_rank.begin(program, stderr=subprocess.PIPE, OTEL_EXPORTER_OTLP_ENDPOINT=sink.address)
        sink.wait(lambda: len(sink.spans) == 3 and sink.named("torch.rank.started"))
        _, errors = rank.communicate("\n", timeout=PATIENCE)
        ended = sink.event("torch.rank.exited").report
        sink.wait(lambda: len(sink.spans) >= 5)
        started = sink.named("torch.rank.started")
    assert rank.returncode == -signal.SIGKILL
    assert ended["exit"]["signal"] == signal.SIGKILL
    assert len(sink.spans) == 5, "what the first monitor has sent is not sent again"
    assert len(started) == 2
    numbers = [event.report["n"] for event in sink.events_named("torch.rank.progress", 1)]
    assert numbers == sorted(numbers)
    assert ended["n"] > max(event.report["n"] for event in started[:1])
    assert errors.count("starting a new one") == 1
