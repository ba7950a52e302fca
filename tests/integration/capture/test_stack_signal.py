"""The signal by which the monitor gets the stacks of a rank that does not answer."""

from __future__ import annotations

import platform
import signal
from pathlib import Path

import pytest

from otel_fr.monitor.process.stacks import _TGKILL, tgkill
from otel_fr.ring import RingReader
from tests.support import single_rank
from tests.support.single_rank import PLAYED
from tests.support.waiting import PATIENCE, until


@pytest.mark.skipif(platform.machine() not in _TGKILL, reason="the number of tgkill is not known here")
def test_stacks_while_the_gil_is_held(tmp_path: Path) -> None:
    program = single_rank.write(
        tmp_path,
        PLAYED
        + """
import ctypes
class PollFd(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]
def holds_the_gil():
    return ctypes.PyDLL(None).poll(ctypes.byref(PollFd(0, 1, 0)), 1, 60_000)
print(hook._state.session._writer.path, flush=True)
assert holds_the_gil() == 1, "the signal interrupted the main thread"  # poll() is never restarted
theirs.close()
""",
    )
    rank = single_rank.begin(program)
    try:
        assert rank.stdout is not None
        ring = RingReader.open(Path(rank.stdout.readline().strip()))
        meta = ring.meta
        file = Path(str(meta["stack_file"]))
        assert file.stat().st_mode & 0o777 == 0o600

        def stacks() -> str | None:
            tgkill(ring.pid, int(str(meta["responder_tid"])), int(str(meta["stack_signal"])))
            text = file.read_text()
            return text if "holds_the_gil" in text else None

        text = until(stacks)
        assert "(most recent call first)" in text
        rank.communicate("\n", timeout=PATIENCE)
        assert rank.returncode == 0
        assert int(signal.SIGRTMIN) < int(str(meta["stack_signal"])) < int(signal.SIGRTMAX)
    finally:
        rank.kill()


@pytest.mark.usefixtures("warm")
def test_a_handler_of_the_program_on_the_signal_for_stacks_is_its_own(tmp_path: Path) -> None:
    """Without the file the monitor sends no signal, so only the senders that the program expects call the handler."""
    out = single_rank.succeed(
        tmp_path,
        PLAYED
        + """
import otel_fr
number, file = ring().meta["stack_signal"], ring().meta["stack_file"]
def handler(number, frame):
    print("handled", number)
print(signal.signal(signalnum=number - 1, handler=handler) is signal.SIG_DFL, os.path.exists(file))
try:
    signal.signal(number, "nonsense")
except TypeError:
    print("raises", os.path.exists(file))
print(signal.signal(number, handler) is signal.SIG_DFL, os.path.exists(file))
threading.Thread(target=theirs.close).start()
otel_fr.uninstrument()
signal.raise_signal(number)
print(signal.signal.__module__, signal.getsignal(number) is handler, number)
""",
    )
    *lines, handled, last = out.splitlines()
    assert lines == ["True True", "raises True", "True False"]
    number = last.split()[-1]
    assert handled == f"handled {number}"
    assert last == f"signal True {number}"
