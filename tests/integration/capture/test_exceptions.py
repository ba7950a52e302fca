"""Which uncaught exceptions are recorded as the end of a rank, and which as exceptions of its threads."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import pytest

from otel_fr.ring import ProcessState, RingReader
from tests.support import single_rank

pytestmark = pytest.mark.usefixtures("warm")

ALONE = """
session_module.start_monitor = no_monitor
start()
def kept():
    reader = ring()
    raised = [f"{found['type']} in {found['thread']}" for found in reader.thread_exceptions]
    print(raised, reader.exception and reader.exception["type"])
def work():
    raise OSError("disk")
def run(target, name="loader"):
    thread = threading.Thread(target=target, name=name)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("run(work)", ["OSError in loader"], id="thread"),
        pytest.param("run(work); run(work, 'loader-2')", ["OSError in loader"], id="the same one again"),
        pytest.param("run(sys.exit)", [], id="sys.exit in a thread"),
        pytest.param(
            "threading.excepthook = lambda args: sys.excepthook(*args[:3])\nrun(work)",
            ["OSError in loader"],
            id="a thread hook that passes it to sys.excepthook",
        ),
        pytest.param(
            "own = threading.excepthook\nthreading.excepthook = lambda args: (own(args), sys.excepthook(*args[:3]))\n"
            "run(work)",
            ["OSError in loader"],
            id="a thread hook that passes it to both",
        ),
        pytest.param("threading.excepthook = lambda args: None\nrun(work)", [], id="a thread hook that hides it"),
        pytest.param(
            "try:\n    work()\nexcept OSError:\n    sys.excepthook(*sys.exc_info())",
            ["OSError in MainThread"],
            id="caught and passed to sys.excepthook",
        ),
        pytest.param("try:\n    work()\nexcept OSError:\n    pass", [], id="caught"),
        pytest.param(
            "import _thread\ndone = threading.Event()\nold = sys.unraisablehook\n"
            "sys.unraisablehook = lambda args: (old(args), done.set())\n"
            "_thread.start_new_thread(work, ())\ndone.wait()",
            ["OSError in Dummy-1"],
            id="_thread.start_new_thread",
        ),
        pytest.param(
            "class Held:\n    def __del__(self):\n        raise OSError('disk')\nHeld()", [], id="__del__ of an object"
        ),
    ],
)
def test_an_exception_that_does_not_end_the_process(tmp_path: Path, body: str, expected: list[str]) -> None:
    assert single_rank.succeed(tmp_path, f"{ALONE}{body}\nkept()\n") == f"{expected} None\n"


def test_the_exceptions_of_a_thread_and_of_the_main_thread_are_both_kept(tmp_path: Path) -> None:
    done = single_rank.run(tmp_path, f"{ALONE}import atexit\natexit.register(kept)\nrun(work)\nraise KeyError('lr')\n")
    assert (done.returncode, done.stdout) == (1, "['OSError in loader'] KeyError\n")
    assert done.stderr.count("KeyError: 'lr'") == 1
    assert done.stderr.count("OSError: disk") == 1


def test_a_service_thread_that_fails_for_ever_is_recorded_a_bounded_number_of_times(tmp_path: Path) -> None:
    body = """
def fail(number):
    raise type(f"Error{number}", (Exception,), {})("again")
for number in range(100):
    try:
        fail(number)
    except Exception as error:
        hook._state.session._hooks.note_of_thread(error, error.__traceback__, None)
kept()
"""
    out = single_rank.succeed(tmp_path, ALONE + body)
    assert out == f"{[f'Error{n} in MainThread' for n in (0, 1, 2, 63)]} None\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('lr')", "'lr'"),
        (
            "try:\n    try:\n        work()\n    except OSError as e:\n        raise ValueError('no sample') from e\n"
            "except ValueError as e:\n    raise RuntimeError('no step\\nsee above') from e",
            "no step (from OSError: disk)\nsee above",
        ),
        pytest.param("sys.excepthook = sys.__excepthook__\nraise KeyError('lr')", "'lr'", id="another hook took over"),
    ],
)
def test_the_exception_that_ends_the_rank_is_recorded_with_what_led_to_it(
    tmp_path: Path, body: str, message: str
) -> None:
    done = single_rank.run(tmp_path, f"{ALONE}def step():\n{textwrap.indent(body, '    ')}\nstep()\n")
    (path,) = single_rank.rings(tmp_path)
    with RingReader.open(path) as reader:
        found, state = reader.exception, reader.state
    assert found is not None
    assert (done.returncode, found["message"], state) == (1, message, ProcessState.EXITING)
    assert str(found["site"]).endswith(" step")
    assert str(tmp_path / "program.py") in str(found["stack"])


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("dist.destroy_process_group()\nsys.exit(3)", 3),
        ("dist.destroy_process_group()\nraise ValueError('bad sample 4711')", 1),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("threading.Thread(target=os._exit, args=(6,)).start()\nthreading.Event().wait()", 6),
    ],
    ids=["sys.exit", "raise", "os._exit", "SIGTERM", "os._exit in a thread"],
)
def test_a_rank_ends_with_the_status_of_its_program(tmp_path: Path, ends: str, code: int) -> None:
    done = single_rank.run(tmp_path, f"start()\ndist.all_reduce(torch.ones(2))\n{ends}\n")
    assert done.returncode == code, done.stderr


ODD = f"""{ALONE}import atexit
calls = []
class OddError(Exception):
    def __str__(self):
        calls.append(threading.current_thread().name)
        TEXT
def odd():
    raise OddError
def note():
    print(len(calls), ring().exception)
atexit.register(note)
"""


@pytest.mark.parametrize(("text", "message"), [("return 'odd'", "odd"), ("raise SystemExit(9)", "failed>")])
@pytest.mark.parametrize(
    ("body", "count"),
    [
        pytest.param("odd()", 2, id="it ends the process: also asked by Python"),
        pytest.param("run(odd)", 2, id="it ends a thread: also asked by Python"),
        pytest.param("try:\n    odd()\nexcept OddError:\n    sys.exit(1)", 1, id="sys.exit"),
        pytest.param("try:\n    odd()\nexcept OddError:\n    raise KeyError('lr')", 2, id="it led to another"),
    ],
)
def test_an_exception_is_asked_for_its_text_once_and_may_fail_then(
    tmp_path: Path, text: str, message: str, body: str, count: int
) -> None:
    done = single_rank.run(tmp_path, ODD.replace("TEXT", text) + body)
    asked, _, recorded = done.stdout.partition(" ")
    assert int(asked) == count, done.stderr
    assert done.returncode == (0 if body == "run(odd)" else 1)
    if body == "odd()":
        assert message in recorded
