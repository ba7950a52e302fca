"""Whether the rank whose calls do not fit has left one out, or made one too many."""

from __future__ import annotations

import pytest

from otel_fr.match import CallState
from tests.support.evidence import BROADCAST, LARGE, SUM, call, cause, rank

SIGNATURES = {"A": SUM, "B": LARGE, "C": BROADCAST}
STEP = "ABAC"
"""Whichever it is, the next call alone does not show it."""


def told(own: str, others: str) -> str:
    """What is said of rank 1, which makes these calls, while ranks 0 and 2 make the others."""
    calls = [
        call(r, number, CallState.COMPLETED, SIGNATURES[letter])
        for r, program in enumerate((others, own, others))
        for number, letter in enumerate(program, 1)
    ]
    ranks = [rank(r, len(program)) for r, program in enumerate((others, own, others))]
    found = cause(calls, ranks)
    assert found.culprit_ranks == (1,)
    return found.summary.partition("appears to have made ")[2]


@pytest.mark.parametrize(
    ("own", "others", "said"),
    [
        ("AC", "ABC", "one call fewer"),
        ("AABC", "ABC", "one call more"),
        (STEP[1:] + STEP, STEP * 2, "one call fewer"),
        (STEP[:1] + STEP * 2, STEP * 2, "one call more"),
        ("BABABAB", "ABABABAB", "one call more or one fewer"),
        ("CC", "AAC", ""),
    ],
    ids=["left out", "extra", "left out of a step", "extra in a step", "either", "more than one"],
)
def test_the_calls_that_follow_show_it(own: str, others: str, said: str) -> None:
    assert told(own, others) == (f"{said} than the others" if said else "")
