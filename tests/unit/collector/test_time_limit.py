"""A request that does not arrive in time is ended; one that is cancelled for another reason is not called slow."""

from __future__ import annotations

import asyncio

import pytest
from otel_fr_collector.receive.time_limit import TimeLimit


def test_what_takes_too_long_ends_with_a_timeout_and_its_task_goes_on() -> None:
    async def main() -> str:
        with pytest.raises(asyncio.TimeoutError), TimeLimit(0.01):
            await asyncio.Event().wait()
        await asyncio.sleep(0)  # a task that still counted as cancelled would end here
        return "goes on"

    assert asyncio.run(main()) == "goes on"


def test_a_cancellation_from_outside_stays_one() -> None:
    async def limited(began: asyncio.Event) -> None:
        with TimeLimit(60.0):
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
        with TimeLimit(0.01):
            found = 1
        await asyncio.sleep(0.05)
        return found

    assert asyncio.run(main()) == 1
