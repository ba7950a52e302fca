"""Which line of a stack is the user's."""

from __future__ import annotations

import pytest

from otel_fr.dumps.fields import users_frame
from otel_fr.stacks import NATIVE_HEADING, first_thread, frames_of, places_of, site_of, threads_of

PACKAGES = "/opt/env/lib/python3.11/site-packages"
TORCH = f"{PACKAGES}/torch/distributed/distributed_c10d.py:2900 all_gather"
USER = "/home/me/job/train.py:42 step"


@pytest.mark.parametrize(
    "wrapper",
    [
        f"{PACKAGES}/typing_extensions.py:3140 wrapper",
        f"{PACKAGES}/torch/distributed/c10d_logger.py:83 wrapper",
        f"{PACKAGES}/wrapt/wrappers.py:12 wrapper",
        "/usr/lib/python3/dist-packages/decorator.py:9 fun",
        "/opt/env/lib/python3.11/functools.py:81 inner",
        "/usr/lib/python3.12/contextlib.py:144 __exit__",
        "/usr/lib64/python3.9/warnings.py:7 wrapped",
        "<frozen runpy>:88 _run_code",
    ],
)
def test_the_line_that_called_a_collective_is_the_users_whatever_wraps_it(wrapper: str) -> None:
    assert users_frame((TORCH, wrapper, USER), whole=False) == USER


def test_an_installed_package_calls_collectives_of_its_own() -> None:
    package = f"{PACKAGES}/megatron/core/tensor_parallel/mappings.py:20 _reduce"
    assert users_frame((TORCH, package, USER), whole=False) == package


def test_where_no_line_is_the_users_the_innermost_one_is_shown() -> None:
    assert users_frame((TORCH, "<frozen runpy>:88 _run_code"), whole=False) == TORCH


def test_a_rank_is_in_the_users_code_also_where_a_package_runs() -> None:
    stack = f"""Thread 0x00007f (most recent call first):
  File "{PACKAGES}/datasets/table.py", line 5 in read
  File "{PACKAGES}/typing_extensions.py", line 3140 in wrapper
  File "/home/me/job/train.py", line 42 in step
"""
    assert site_of(stack) == USER


BEGUN = f"""Thread 0x00007f [MainThread] (most recent call first):
  File "{PACKAGES}/torch/distributed/distributed_c10d.py", line 2900 in all_gather
  File "/home/me/job/train.py", line 42 in step
"""
RAISED = """Traceback (most recent call last):
  File "/home/me/job/train.py", line 9, in <module>
    main()
  File "/home/me/job/train.py", line 42, in step
    loss = model(batch)
RuntimeError: two
Thread 3 of the loader has ended
"""


def test_frames_come_with_the_innermost_first_whatever_the_text_begins_with() -> None:
    assert [frame.place for frame in frames_of(BEGUN)] == [TORCH, USER]
    innermost, outermost = frames_of(RAISED)
    assert (innermost.place, innermost.source) == (USER, "loss = model(batch)")
    assert outermost.name == "<module>"


def test_the_end_of_a_long_exception_has_its_innermost_frames_last() -> None:
    """What does not fit is cut off at the beginning, and the heading with it."""
    end = RAISED.partition("\n")[2]
    assert frames_of(end) == frames_of(RAISED)
    assert site_of(end) == USER


def test_only_a_heading_begins_a_thread() -> None:
    assert first_thread(RAISED) == RAISED
    assert threads_of(RAISED) == []
    assert threads_of(f"Fatal Python error: Aborted\n\n{BEGUN}\n{BEGUN}") == [f"{BEGUN}\n", BEGUN]
    assert first_thread(f"Stack (most recent call first):\n{BEGUN}") == "Stack (most recent call first):\n"


def test_native_frames_are_no_part_of_a_thread() -> None:
    text = f"{BEGUN}\n{NATIVE_HEADING}\nThread 7 (idle)\n    wait (wait.c:3)\n"
    assert first_thread(text) == BEGUN
    assert first_thread(f"{NATIVE_HEADING}\nThread 7 (idle)\n") == ""


def test_frames_of_a_group_of_exceptions_are_found() -> None:
    text = (
        '  + Exception Group Traceback (most recent call last):\n  |   File "/home/me/job/train.py", line 42, in step\n'
    )
    assert site_of(text) == USER


@pytest.mark.parametrize(
    "between",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_chained_tracebacks_stay_apart_with_the_newest_exception_last(between: str) -> None:
    """As Python prints them: the first one is what happened first."""
    first = 'Traceback (most recent call last):\n  File "/job/data.py", line 9, in load\nOSError: no disk\n'
    text = f"{first}\n{between}\n\n{RAISED}"
    assert [frame.place for frame in frames_of(text)] == [frame.place for frame in frames_of(RAISED)]
    assert places_of(text) == ["/job/data.py:9 load", between, "/home/me/job/train.py:9 <module>", USER]
    assert places_of(text.partition("load")[2])[0] == "/home/me/job/train.py:9 <module>"  # the rest was cut off
