"""Ranks that have left a loop in which others wait."""

from __future__ import annotations

from typing import Any

import pytest

from otel_fr.match import CallState, Ending, Finding
from otel_fr.stacks import Loop
from tests.support.evidence import BARRIER, call, cause, rank

EPOCHS, BATCHES = Loop("train.py", 30, 50, "main"), Loop("train.py", 38, 44, "main", is_nested=True)
STACK = """Thread MainThread (most recent call last):
  File "train.py", line 60, in <module>
    main()
  File "train.py", line 41, in main
    average(model)
  File "sync.py", line 8, in average
    dist.all_reduce(grad)
"""


def said(found: Finding) -> list[str]:
    return [text for text in found.details if "left the loop" in text]


def of_rank_2(*loops: Loop, site: str = "train.py:40 main", **of_peers: Any) -> list[str]:
    """Ranks 0 and 1 wait at ``site`` for rank 2, which has left these loops."""
    peers = [rank(r, 5, **of_peers) for r in (0, 1)]
    calls = [call(r, site=site) for r in (0, 1)]
    return said(cause(calls, [*peers, rank(2, 4, site="train.py:47 main", left_loops=loops)]))


def test_the_latest_loop_is_named_in_which_others_wait() -> None:
    text = "rank 2 has left the loop at train.py:38-44 main, in which ranks 0, 1 wait (maybe after entering it again)"
    assert of_rank_2(BATCHES, EPOCHS) == [text]
    assert of_rank_2(Loop("train.py", 46, 47, "main"), BATCHES) == [text]
    assert of_rank_2(EPOCHS) == ["rank 2 has left the loop at train.py:30-50 main, in which ranks 0, 1 wait"]


def test_the_call_may_be_made_in_a_function_that_the_loop_calls() -> None:
    (text,) = of_rank_2(EPOCHS, site="sync.py:8 average", stack=STACK)
    assert text.endswith("in which ranks 0, 1 wait")
    assert of_rank_2(EPOCHS, site="sync.py:8 average") == []


@pytest.mark.parametrize(
    "site",
    ["train.py:29 main", "train.py:51 main", "train.py:40 evaluate", "other.py:40 main", "", "40", "train.py:x main"],
)
def test_others_that_wait_elsewhere_are_not_in_it(site: str) -> None:
    assert of_rank_2(EPOCHS, site=site) == []


def test_a_loop_in_one_line_has_one_number() -> None:
    (text,) = of_rank_2(Loop("train.py", 40, 40, "main"))
    assert "at train.py:40 main," in text


def test_once_all_have_ended_they_waited() -> None:
    failed: dict[str, Any] = {
        "state": CallState.FAILED,
        "error": "timeout",
        "duration": 9.0,
        "site": "train.py:40 main",
    }
    ended: dict[str, Any] = {"ending": Ending.RAISED, "exception": "RuntimeError: Timed out"}
    astray = rank(2, 4, site="train.py:47 main", left_loops=(EPOCHS,))
    found = cause([call(r, **failed) for r in (0, 1)], [*[rank(r, 5, **ended) for r in (0, 1)], astray])
    assert said(found) == ["rank 2 has left the loop at train.py:30-50 main, in which ranks 0, 1 waited"]


def test_a_rank_in_another_call_after_the_loop() -> None:
    """Of two ranks none is in the majority: both are culprits, and one of them is in the loop."""
    calls = [call(0, site="train.py:40 main"), call(1, signature=BARRIER, site="train.py:52 main")]
    found = cause(calls, [rank(0, 5), rank(1, 5, left_loops=(EPOCHS,))], size=2)
    assert found.culprit_ranks == (0, 1)
    assert said(found) == ["rank 1 has left the loop at train.py:30-50 main, in which rank 0 waits"]


def test_ranks_that_left_the_same_loop_are_named_together() -> None:
    calls = [call(r, site="train.py:40 main") for r in (0, 1)]
    astray = [rank(r, 4, left_loops=(EPOCHS,)) for r in (2, 3)]
    found = cause(calls, [rank(0, 5), rank(1, 5), *astray], size=4)
    assert said(found) == ["ranks 2, 3 have left the loop at train.py:30-50 main, in which ranks 0, 1 wait"]
