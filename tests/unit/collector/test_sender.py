"""The queue of one backend: what waits for what when requests fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from otel_fr_collector.forward import sender as sender_module
from otel_fr_collector.forward.backends import BusyError
from otel_fr_collector.forward.forwarder import Forwarder
from otel_fr_collector.forward.queues import Queues
from otel_fr_collector.forward.sender import IN_ORDER, MAX_ATTEMPTS, UNREACHED_IN_ORDER
from otel_fr_collector.metrics import Metrics

from tests.support.otlp_messages import spans
from tests.support.waiting import PATIENCE

REQUESTS = [spans(number + 1) for number in range(8)]


class Scripted:
    """A backend that asks a function, with the request and its attempt, whether to fail."""

    name = "grpc://scripted"

    def __init__(self, fails: Callable[[bytes, int], Exception | None]) -> None:
        self.attempts: list[bytes] = []
        self.accepted: list[bytes] = []
        self._fails = fails

    async def send(self, signal: str, data: bytes) -> None:
        self.attempts.append(data)
        error = self._fails(data, self.attempts.count(data))
        if error is not None:
            raise error
        self.accepted.append(data)

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "FIRST_BACKOFF", 0.0)
    monkeypatch.setattr(sender_module, "MAX_BACKOFF", 0.0)


def sent(backend: Scripted, requests: list[bytes]) -> Metrics:
    """Queue these and send them, until nothing waits."""
    metrics = Metrics()

    async def play() -> None:
        queues = Queues([backend.name], 1 << 30)
        forwarder = Forwarder(queues, [backend], metrics)
        for data in requests:
            await forwarder.take("traces", data)
        forwarder.start()
        await until(lambda: not queues.waiting[backend.name])
        await forwarder.stop(PATIENCE)
        await forwarder.close(PATIENCE)

    asyncio.run(play())
    return metrics


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition."""

    async def wait() -> None:
        while not holds():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), PATIENCE)


def dropped(metrics: Metrics, reason: str = "") -> float:
    return sum(
        sample.value
        for family in metrics.forward_dropped.collect()
        for sample in family.samples
        if sample.name.endswith("_total") and reason in sample.labels["reason"]
    )


@pytest.mark.parametrize("bad", [1, 2, 3, len(REQUESTS) - 1])
@pytest.mark.parametrize("count", [len(REQUESTS), 3 * IN_ORDER])
def test_requests_that_fail_do_not_block_the_others(bad: int, count: int) -> None:
    """A short queue, and one that sends several requests at once; the bad ones are accepted in the end."""
    requests = [spans(number + 1) for number in range(count)]
    hated = requests[:bad]
    others = count - bad

    def fails(data: bytes, attempt: int) -> Exception | None:
        return BusyError("not this one") if data in hated and attempt < 15 else None

    backend = Scripted(fails)
    assert dropped(sent(backend, requests)) == 0
    assert set(backend.accepted[:others]) == set(requests[bad:])
    assert sorted(backend.accepted) == sorted(requests)
    if count <= IN_ORDER:
        assert backend.accepted[:others] == requests[bad:], "the others stay in order"


@pytest.mark.parametrize("error", [BusyError("busy"), ValueError("not expected of a backend")])
def test_a_request_that_always_fails_is_dropped_if_others_are_accepted(error: Exception) -> None:
    requests = [spans(number + 1) for number in range(2 * MAX_ATTEMPTS)]
    bad = requests[0]
    backend, metrics = Scripted(lambda data, _: error if data == bad else None), Metrics()

    async def play() -> None:
        forwarder = Forwarder(Queues([backend.name], 1 << 30), [backend], metrics)
        forwarder.start()
        for data in requests:
            await forwarder.take("traces", data)
            await until(lambda: data in backend.attempts and (backend.attempts[-1] == bad or dropped(metrics) > 0))  # noqa: B023
        await forwarder.stop(PATIENCE)

    asyncio.run(play())
    assert backend.attempts.count(bad) >= MAX_ATTEMPTS
    assert sorted(backend.accepted) == sorted(requests[1:])
    assert dropped(metrics, "retries_exhausted") == dropped(metrics) == 1


def test_a_backend_that_cannot_be_reached_gets_everything_in_order() -> None:
    downs = UNREACHED_IN_ORDER - 1
    backend = Scripted(lambda _, attempt: BusyError("down", reached=False) if len(backend.attempts) <= downs else None)
    sent(backend, REQUESTS)
    assert backend.attempts[:downs] == [REQUESTS[0]] * downs
    assert backend.accepted == REQUESTS


def test_a_request_that_brings_its_backend_down_does_not_block_the_others() -> None:
    """There is no connection after it, as if the backend were down anyway; it is never dropped for that."""

    def fails(data: bytes, attempt: int) -> Exception | None:
        return BusyError("down", reached=False) if data == REQUESTS[0] and attempt < 3 * MAX_ATTEMPTS else None

    backend = Scripted(fails)
    assert dropped(sent(backend, REQUESTS)) == 0
    assert backend.accepted == [*REQUESTS[1:], REQUESTS[0]]


def test_an_outage_drops_nothing_however_long_it_is() -> None:
    """Also not a request that failed before, while others were accepted."""
    ends_at = 20 * MAX_ATTEMPTS

    def fails(data: bytes, attempt: int) -> Exception | None:
        number = len(backend.attempts)
        is_down = 3 < number < ends_at or (data == REQUESTS[0] and number < ends_at)
        return BusyError("overloaded") if is_down else None

    backend = Scripted(fails)
    assert dropped(sent(backend, REQUESTS)) == 0
    assert sorted(backend.accepted) == sorted(REQUESTS)


def test_a_failing_request_that_has_expired_is_forgotten() -> None:
    now = [10**12]
    backend = Scripted(lambda data, _: BusyError("not this one") if data == REQUESTS[0] else None)

    async def play() -> None:
        queues = Queues([backend.name], 1 << 30, clock=lambda: now[0])
        forwarder = Forwarder(queues, [backend], Metrics())
        for data in REQUESTS:
            await forwarder.take("traces", data)
        forwarder.start()
        await until(lambda: len(backend.accepted) == len(REQUESTS) - 1)
        now[0] += 100 * 10**9
        assert await queues.drop_old(60.0) == {backend.name: 1}
        await forwarder.stop(PATIENCE)
        assert (len(queues.waiting[backend.name]), queues.sizes[backend.name]) == (0, 0)
        await forwarder.close(PATIENCE)

    asyncio.run(play())
