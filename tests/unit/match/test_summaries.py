"""A summary is one line of bounded length, whatever the job's exceptions, names and sizes are."""

from __future__ import annotations

import pytest

from otel_fr.match import Ending, Group, Rank, ThreadException
from otel_fr.presentation import MAX_MESSAGE, MAX_SUMMARY, message_text
from tests.support.evidence import call, judge, rank, world

TRACEBACK = """RuntimeError: Caught OSError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "worker.py", line 3, in fetch
    raise OSError("disk full")
OSError: disk full
"""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ValueError: bad sample 4711", "ValueError: bad sample 4711"),
        ("ValueError: two\nlines", "ValueError: two ..."),
        ("ShapeError: \n\n  3 channels, not 1.\n", "ShapeError: 3 channels, not 1."),
        ("ValueError: 2 errors in Config:\n  lr\n  seed", "ValueError: 2 errors in Config: lr ..."),
        (TRACEBACK, "RuntimeError: Caught OSError in DataLoader worker process 0. ... OSError: disk full"),
        ("", ""),
        ("\n\n", ""),
    ],
)
def test_a_message_is_cut_to_its_first_line(text: str, shown: str) -> None:
    assert message_text(text) == shown


def test_a_long_message_is_cut() -> None:
    assert message_text("x" * 10_000) == "x" * (MAX_MESSAGE - 3) + "..."
    assert message_text("x" * MAX_MESSAGE) == "x" * MAX_MESSAGE


def test_the_summary_of_ranks_that_raised_long_messages_is_one_line() -> None:
    text = "ValueError: " + "very " * 100 + "long\nand more"
    threads = tuple(ThreadException(f"worker {n}", TRACEBACK * 20) for n in range(4))
    raised = {
        rank: Rank(rank, ending=Ending.RAISED, exception=text, exit_code=1, thread_exceptions=threads)
        for rank in range(8)
    }
    left = Rank(8, ending=Ending.RAISED, exit_code=1, exit_message=TRACEBACK)
    found = judge([], [*raised.values(), left], [world(9)], 9)
    assert found
    for finding in found:
        assert "\n" not in finding.summary
        assert len(finding.summary) < MAX_SUMMARY


def test_names_and_sizes_do_not_make_a_summary_endless() -> None:
    group = Group("w", "0", "a name\nof two lines" * 500, (0, 1, 2))
    ranks = [rank(r, int(r != 1), 0) for r in range(3)]
    (found,) = judge([call(r, 1) for r in (0, 2)], ranks, [group], 3)
    assert len(found.summary) == MAX_SUMMARY
    assert "\n" not in found.summary
