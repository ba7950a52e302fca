"""Which ranks that have not come to a run are known from the run that its processes were in before."""

from __future__ import annotations

from typing import Any

import pytest

from otel_fr.match import Ending, Place, Rank
from otel_fr.match.facts.ranks import not_yet_here
from tests.support.evidence import rank


def process(number: int, pid: int | None, **more: Any) -> Rank:
    return rank(number, 3, place=Place("n0", pid), site=f"train.py:{pid}", **more)


@pytest.mark.parametrize(
    ("here", "before", "world", "found"),
    [
        ({0: 10, 1: 11}, {0: 10, 1: 11, 2: 12}, 3, {2: 12}),
        ({0: 10, 1: 11}, {2: 12}, 3, {2: 12}),  # the files of ranks 0 and 1 were overwritten
        ({0: 10}, {0: 10, 1: 11, 2: 12}, 3, {1: 11, 2: 12}),
        ({0: 10, 1: 12}, {0: 10, 1: 11, 2: 12}, 2, {}),  # without the rank that failed: nobody is absent
        ({0: 12, 1: 11}, {0: 10, 1: 11, 2: 12}, 3, {2: 10}),  # other numbers: one is left for one
        ({0: 12}, {0: 10, 1: 11, 2: 12}, 3, {}),
        ({0: 10, 1: 12}, {1: 11}, 3, {2: 11}),  # so in files, if those of processes 10 and 12 were replaced
        ({0: 12}, {0: 10, 1: 11}, 3, {1: 11}),
        ({0: 20, 1: 21}, {0: 10, 1: 11, 2: 12}, 4, {2: 12}),  # new processes beside those before
        ({0: 10, 1: 21, 2: 12}, {0: 10, 1: 11, 2: 12}, 4, {}),  # a new process took the place of 11: 3 is unknown
        ({0: 10, 1: 11}, {0: 10, 1: 11, 2: None}, 3, {}),
        ({0: 10, 1: 11}, {0: 10, 1: 11}, None, {}),
        ({}, {}, 3, {}),
    ],
)
def test_processes_keep_their_numbers_or_one_is_left(
    here: dict[int, int], before: dict[int, int | None], world: int | None, found: dict[int, int]
) -> None:
    now = {number: process(number, pid) for number, pid in here.items()}
    known = not_yet_here(now, world, {number: process(number, pid) for number, pid in before.items()})
    assert {number: one.site for number, one in known.items()} == {n: f"train.py:{pid}" for n, pid in found.items()}
    assert all(one.rank == number and not one.progress for number, one in known.items())


@pytest.mark.parametrize(
    ("end", "is_known"),
    [
        ({"ending": Ending.CLEAN}, False),
        ({"ending": Ending.CLEAN, "exit_code": 0}, True),
        ({"ending": Ending.RAISED, "exit_code": 1}, True),
        ({"ending": Ending.KILLED, "signal": 9}, True),
    ],
    ids=["on its way", "has ended", "raised", "killed"],
)
def test_one_that_left_in_good_order_may_be_on_its_way(end: dict[str, object], is_known: bool) -> None:
    known = not_yet_here({0: process(0, 10)}, 2, {0: process(0, 10), 1: process(1, 11, **end)})
    assert (1 in known) == is_known
