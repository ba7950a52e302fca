"""Answers that took long to make are reused for longer, but not for ever."""

from __future__ import annotations

import asyncio

import pytest
from otel_fr_collector.web.fresh import FRESH, LONGEST, SHARE, Fresh


@pytest.mark.parametrize(("took", "fresh"), [(0.0, FRESH), (0.3, SHARE * 0.3), (60.0, LONGEST)])
def test_an_answer_is_reused_for_as_long_as_it_is_worth(took: float, fresh: float) -> None:
    now, made = 100.0, 0

    async def make() -> int:
        nonlocal now, made
        now += took
        made += 1
        return made

    async def play() -> list[int]:
        nonlocal now
        answers, found = Fresh(lambda: now), []
        for later in (0.0, fresh - 0.01, 0.02):
            now += later
            found.append(await answers.get("a", make))
        return found

    assert asyncio.run(play()) == [1, 1, 2]


def test_many_who_ask_at_once_share_one_answer() -> None:
    made = []

    async def make() -> int:
        made.append(1)
        await asyncio.sleep(0)
        return len(made)

    async def play() -> list[int]:
        answers = Fresh(lambda: 0.0)
        return await asyncio.gather(*(answers.get("a", make) for _ in range(20)))

    assert asyncio.run(play()) == [1] * 20
