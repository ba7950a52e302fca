"""A request that does not arrive in time is ended; one that is cancelled for another reason is not called slow."""

from __future__ import annotations

import asyncio

import pytest
from otel_fr_collector.receive.time_limit import TimeLimits


def test_what_takes_too_long_ends_with_a_timeout_and_its_task_goes_on() -> None:
    async def main() -> str:
        with pytest.raises(asyncio.TimeoutError), TimeLimits(0.01).limited():
            await asyncio.Event().wait()
        await asyncio.sleep(0)  # a task that still counted as cancelled would end here
        return "continues"

    assert asyncio.run(main()) == "continues"


def test_a_cancellation_from_outside_stays_one() -> None:
    async def limited(began: asyncio.Event) -> None:
        with TimeLimits(60.0).limited():
            began.set()
            await asyncio.Event().wait()

    async def main() -> None:
        began = asyncio.Event()
        task = asyncio.create_task(limited(began))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())


def test_what_ends_in_time_is_left_alone() -> None:
    async def main() -> int:
        with TimeLimits(0.01).limited():
            found = 1
        await asyncio.sleep(0.05)
        return found

    assert asyncio.run(main()) == 1


def test_one_timer_serves_all_and_each_ends_in_its_own_time() -> None:
    async def limited(limits: TimeLimits, ended: list[int], number: int) -> None:
        with pytest.raises(asyncio.TimeoutError), limits.limited():
            await asyncio.Event().wait()
        ended.append(number)

    async def main() -> list[int]:
        limits, ended = TimeLimits(0.05), list[int]()
        loop = asyncio.get_running_loop()
        began = [loop.time()]
        first = asyncio.create_task(limited(limits, ended, 1))
        await asyncio.sleep(0.03)
        with limits.limited():  # ends in time, between the two that do not
            began.append(loop.time())
            second = asyncio.create_task(limited(limits, ended, 2))
        for task, since in zip((first, second), began, strict=True):
            await task
            assert loop.time() >= since + 0.05
        await limited(limits, ended, 3)  # after all have ended
        return ended

    assert asyncio.run(main()) == [1, 2, 3]
