"""The records of ``sys.exit``, which programs do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import single_rank
from tests.support.long_tests import all_but

pytestmark = pytest.mark.usefixtures("warm")

SHOWN = """
session_module.start_monitor = no_monitor
start()
import atexit
def shown():
    meta = ring().meta
    print([meta.get(key, "") for key in ("exiting", "exit_message")], meta.get("exit_site", "").rpartition(" ")[2])
atexit.register(shown)
def leave(*status):
    sys.exit(*status)
"""


CASES = {
    "a message": ("leave('no samples left')", 1, "'no samples left'] leave", "no samples left\n"),
    "a status": ("leave(3)", 3, "''] leave", ""),
    "an object": ("leave({'samples': 0})", 1, "\"{'samples': 0}\"] leave", "{'samples': 0}\n"),
    "status 0": ("leave(0)", 0, "''] ", ""),
    "raised": ("raise SystemExit('bye')", 1, "''] ", "bye\n"),
    "while an exception is handled": (
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    leave(1)",
        1,
        "'while handling ZeroDivisionError: division by zero'] leave",
        "",
    ),
    "while Ctrl-C is handled": (
        "try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    leave(0)",
        0,
        "'while handling KeyboardInterrupt: '] ",
        "",
    ),
    "in a handler of SIGINT": (
        "signal.signal(signal.SIGINT, lambda *_: leave(0))\nsignal.raise_signal(signal.SIGINT)",
        0,
        "'while handling SIGINT'] ",
        "",
    ),
    "in a handler that is an object": (
        "class Handler:\n    def __call__(self, number, frame): leave('bye')\n"
        "signal.signal(signal.SIGTERM, Handler())\nsignal.raise_signal(signal.SIGTERM)",
        1,
        "'while handling SIGTERM: bye'] leave",
        "bye\n",
    ),
    "in a handler of another signal": (
        "signal.signal(signal.SIGUSR1, lambda *_: leave(0))\nsignal.raise_signal(signal.SIGUSR1)",
        0,
        "''] ",
        "",
    ),
    "caught before": ("try:\n    leave('caught')\nexcept SystemExit:\n    pass\nleave(2)", 2, "''] leave", ""),
    "in a thread": ("t = threading.Thread(target=leave, args=('thread',))\nt.start()\nt.join()", 0, "''] ", ""),
    "pickled": ("import pickle\nassert pickle.loads(pickle.dumps(sys.exit)) is sys.exit", 0, "''] ", ""),
    "wrong arguments": ("try:\n    sys.exit(1, 2)\nexcept TypeError:\n    pass", 0, "''] ", ""),
}
"""Body, status, recorded message, recorded function, output."""
SHORT = ("a message", "a status", "while an exception is handled", "while Ctrl-C is handled", "in a handler of SIGINT")


@pytest.mark.parametrize("case", all_but((*SHORT, "wrong arguments"), CASES))
def test_the_last_call_of_the_main_thread_is_recorded_as_the_interpreter_ends(tmp_path: Path, case: str) -> None:
    body, code, expected, printed = CASES[case]
    done = single_rank.run(tmp_path, SHOWN + body)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(f"[True, {expected}"), done.stdout
    assert done.stderr.endswith(printed), done.stderr
    assert "Traceback" not in done.stderr
