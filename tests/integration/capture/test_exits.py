"""What is recorded of ``sys.exit``, and that a program sees no difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import single_rank

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


@pytest.mark.parametrize(
    ("body", "code", "expected", "printed"),
    [
        ("leave('no samples left')", 1, "[True, 'no samples left'] leave", "no samples left\n"),
        ("leave(3)", 3, "[True, ''] leave", ""),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError:\n    leave(1)",
            1,
            "[True, 'while handling ZeroDivisionError: division by zero'] leave",
            "",
        ),
        (
            "try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    leave(0)",
            0,
            "[True, 'while handling KeyboardInterrupt: '] ",
            "",
        ),
        (
            "import signal\nsignal.signal(signal.SIGINT, lambda *_: leave(0))\nsignal.raise_signal(signal.SIGINT)",
            0,
            "[True, 'while handling SIGINT'] ",
            "",
        ),
        pytest.param(
            "import signal\n"
            "class Handler:\n    def __call__(self, number, frame): leave('bye')\n"
            "signal.signal(signal.SIGTERM, Handler())\nsignal.raise_signal(signal.SIGTERM)",
            1,
            "[True, 'while handling SIGTERM: bye'] leave",
            "bye\n",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: leave(0))\nsignal.raise_signal(signal.SIGUSR1)",
            0,
            "[True, ''] ",
            "",
            marks=pytest.mark.long,
        ),
        pytest.param("leave(0)", 0, "[True, ''] ", "", marks=pytest.mark.long),
        pytest.param("raise SystemExit('bye')", 1, "[True, ''] ", "bye\n", marks=pytest.mark.long),
        pytest.param(
            "leave({'samples': 0})", 1, "[True, \"{'samples': 0}\"] leave", "{'samples': 0}\n", marks=pytest.mark.long
        ),
        pytest.param(
            "try:\n    leave('caught')\nexcept SystemExit:\n    pass\nleave(2)",
            2,
            "[True, ''] leave",
            "",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "t = threading.Thread(target=leave, args=('thread',))\nt.start()\nt.join()",
            0,
            "[True, ''] ",
            "",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "import pickle\nassert pickle.loads(pickle.dumps(sys.exit)) is sys.exit",
            0,
            "[True, ''] ",
            "",
            marks=pytest.mark.long,
        ),
        ("try:\n    sys.exit(1, 2)\nexcept TypeError:\n    pass", 0, "[True, ''] ", ""),
        ("hook.uninstall()\natexit.unregister(shown)\nprint(type(sys.exit).__name__)", 0, "builtin", ""),
    ],
)
def test_the_last_call_of_the_main_thread_is_recorded_as_the_interpreter_ends(
    tmp_path: Path, body: str, code: int, expected: str, printed: str
) -> None:
    done = single_rank.run(tmp_path, SHOWN + body)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(expected), done.stdout
    assert done.stderr.endswith(printed), done.stderr
    assert "Traceback" not in done.stderr
