"""What is said of an exception: its text, and what led to it."""

from __future__ import annotations

import code
import sys
from typing import Any

import pytest

from otel_fr.capture import exceptions
from otel_fr.capture.exceptions import ExceptionHooks, described
from otel_fr.capture.replaced import Replacements
from otel_fr.capture.sites import Sites


def raised(body: str) -> BaseException:
    """The exception that this program ends with."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - of any kind
        exec(body, {})
    return caught.value


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise ValueError('\\n\\n  3 channels\\n')", "ValueError: 3 channels"),
        (
            "try:\n    raise OSError('disk')\nexcept OSError:\n    1 / 0",
            "ZeroDivisionError: division by zero (from OSError: disk)",
        ),
        (
            "try:\n    raise OSError('disk')\nexcept OSError:\n    raise ValueError('no sample') from None",
            "ValueError: no sample",
        ),
        (
            "try:\n    try:\n        raise OSError('disk')\n    except OSError:\n        raise KeyboardInterrupt\n"
            "except KeyboardInterrupt:\n    raise RuntimeError('interrupted')",
            "RuntimeError: interrupted (from KeyboardInterrupt)",
        ),
        (
            "one, two = OSError('disk'), ValueError('loop')\none.__cause__, two.__cause__ = two, one\nraise two",
            "ValueError: loop (from OSError: disk)",
        ),
    ],
)
def test_the_first_of_a_chain_is_named(body: str, text: str) -> None:
    assert described(raised(body)) == text


@pytest.mark.parametrize("is_prompt", [True, False])
def test_an_exception_at_a_prompt_ends_no_rank(is_prompt: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    error = raised("1 / 0")
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    monkeypatch.setattr(exceptions, "_is_program_running", lambda: False)
    if is_prompt:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
        monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    ending, of_threads = list[Any](), list[Any]()
    replaced = Replacements()
    hooks = ExceptionHooks(ending.append, of_threads.append, Sites(()), replaced)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
        hooks.note_last()
    finally:
        replaced.undo()
    assert (len(ending), len(of_threads), hooks.recorded) == ((0, 1, False) if is_prompt else (1, 0, True))


def test_an_exception_in_a_console_of_the_program_ends_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console passes it to sys.excepthook, and stores it like the interpreter."""
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        monkeypatch.setattr(sys, name, None, raising=False)
    ending, of_threads = list[Any](), list[Any]()
    replaced = Replacements()
    hooks = ExceptionHooks(ending.append, of_threads.append, Sites(()), replaced)
    try:
        code.InteractiveInterpreter().runsource("1 / 0")
        assert isinstance(sys.last_value, ZeroDivisionError)
        hooks.note_last()
    finally:
        replaced.undo()
    assert (len(ending), len(of_threads), hooks.recorded) == (0, 1, False)
