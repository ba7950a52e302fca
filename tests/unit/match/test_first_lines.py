"""The first call that a culprit made elsewhere than its peers, as reports show it; files: `tests.unit.analyze`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.match import Rank
from otel_fr.stacks import ALPHABET, CallLines
from tests.support.evidence import WORLD, call, cause, rank

PLACES = (("train.py:10 grads", "train.py:5 step"), ("train.py:20 loss",), ("train.py:30 log",))
LOOP = "01" * 8


def rank_with(number: int, reached: int, calls: str, *, group: str = WORLD.id) -> Rank:
    """The last of these calls is the rank's newest."""
    return rank(number, reached, lines=(CallLines(group, reached - len(calls) + 1, calls, PLACES),))


def said(calls: str, peer: str = LOOP, *, others: Sequence[str] = (), group: str = WORLD.id) -> list[str]:
    """Rank 1 made these calls; ranks 0 and 2 those of a peer, and wait in the last one."""
    last = 20 + len(peer)
    peers = [rank_with(0, last, peer), rank_with(2, last, *others or [peer])]
    own = rank_with(1, 20 + len(calls), calls, group=group)
    found = cause([call(r, last) for r in (0, 2)], [*peers, own])
    assert found.culprit_ranks == (1,)
    return [text for text in found.details if "made elsewhere" in text]


SKIPS, DOUBLES = LOOP[:5] + LOOP[6:], (LOOP[:5] + "0" + LOOP[5:])[: len(LOOP) - 1]


@pytest.mark.parametrize("calls", [SKIPS, DOUBLES])
def test_a_call_left_out_or_made_too_many_is_named(calls: str) -> None:
    (text,) = said(calls)
    assert text == (
        "the first call that rank 1 made elsewhere: number 26 of group default_pg (0), at train.py:10 grads; the others"
        " at train.py:20 loss"
    )


@pytest.mark.parametrize(
    "calls",
    [
        LOOP[:-1],
        LOOP[:5] + "2" + LOOP[6:-1],  # a line of its own for one call
        LOOP[:5] + "2" + LOOP[6:9] + "2" + LOOP[10:-1],
        LOOP[1:],  # it was elsewhere as far as is known
        LOOP[:5] + " " + LOOP[6:-1],  # one is not known
    ],
)
def test_lines_that_tell_nothing(calls: str) -> None:
    assert said(calls) == []


def test_lines_of_another_group_are_not_compared() -> None:
    assert said(SKIPS, group="t") == []


def test_where_peers_differ_nothing_is_compared() -> None:
    (text,) = said(SKIPS, others=[LOOP.replace("1", "2")])
    assert "number 27 " in text


@given(st.text(ALPHABET + " é", max_size=20), st.integers(0, 5), st.integers(0, 100))
def test_only_known_places_are_read(calls: str, known: int, first: int) -> None:
    places = tuple([(f"train.py:{number} main",) for number in range(known)])
    lines = CallLines("w", first, calls, places).by_number()
    for number, one in enumerate(calls, first):
        at = ALPHABET.find(one)
        assert lines.get(number) == (places[at] if 0 <= at < known else None)
