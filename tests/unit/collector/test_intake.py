"""The bounded queue between receiving and correlating, and the time in which requests must arrive."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from otel_fr_collector import turns
from otel_fr_collector.jobs import ingest
from otel_fr_collector.metric_table import FAMILIES
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp import status as otlp_status
from otel_fr_collector.otlp.signals import LOGS, METHODS, TRACES
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.receive import intake as module
from otel_fr_collector.receive.inflate import MAX_MEMBERS, PIECE, CorruptError, Inflater
from otel_fr_collector.receive.intake import IncomingRequest, Intake, Limits
from otel_fr_collector.receive.rejections import Reason, RejectedError
from otel_fr_collector.receive.time_limit import TimeLimits
from otel_fr_collector.service import Service

from tests.support.otlp_messages import logs_request, rank_resource

LIMITS = Limits(max_request_size=100, max_queue_size=250, client_queue_size=150, client_connections=3)


def make(limits: Limits = LIMITS, now: list[float] | None = None) -> Intake:
    return Intake(Service(metrics := Metrics(), Outlets(metrics)), limits, clock=lambda: (now or [0.0])[0])


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 120), max_size=3), st.booleans()), max_size=40)
)
def test_after_any_calls_there_is_as_much_room_as_before(calls: list[tuple[str, list[int], bool]]) -> None:
    intake = make()
    with contextlib.ExitStack() as held:
        for client, sizes, stays in calls:
            with contextlib.ExitStack() as own, contextlib.suppress(RejectedError):
                call = own.enter_context(intake.admit(client, "", TRACES))
                for size in sizes:
                    call.hold(size)
                if stays:
                    held.enter_context(own.pop_all())
    for client in "abc":
        with intake.admit(client, "", TRACES) as call:
            call.hold(100)
    with intake.admit("a", "", TRACES) as one, intake.admit("b", "", TRACES) as two:
        one.hold(100)
        two.hold(100)


def test_a_body_of_many_empty_members_is_refused() -> None:
    """A million of them are 20 MB, took hours to unpack to nothing, and stayed in memory meanwhile."""
    one = gzip.compress(b"spans")
    inflater = Inflater("gzip")
    assert b"".join(inflater.feed(MAX_MEMBERS * one)) == MAX_MEMBERS * b"spans"
    inflater.finish()
    with pytest.raises(CorruptError, match="more than 64 members"):
        list(Inflater("gzip").feed((MAX_MEMBERS + 1) * gzip.compress(b"")))


def test_only_one_large_body_is_unpacked_in_a_turn_of_the_event_loop() -> None:
    """A report takes several turns: among 16 bodies of 16 MiB, each of 16 kB when sent, it took two seconds."""
    made: Counter[int] = Counter()
    turn = 0

    class Pieces(Inflater):
        def feed(self, data: bytes) -> Iterator[bytes]:
            for number, piece in enumerate(super().feed(data)):
                if number > 1:  # until then it may be a small one
                    made[turn] += 1
                yield piece

    async def unpack(intake: Intake, data: bytes) -> None:
        with intake.admit("a", "", TRACES) as call:
            await call.inflate(Pieces("gzip"), data)

    async def unpack_all() -> None:
        nonlocal turn
        all_done = asyncio.gather(*[unpack(intake, gzip.compress(bytes(8 * PIECE))) for _ in range(8)])
        while not all_done.done():
            turn += 1
            await asyncio.sleep(0)
        await all_done

    intake = make(Limits())
    asyncio.run(unpack_all())
    assert made.total() == 8 * 6
    assert max(made.values()) == 1


def test_only_one_of_the_requests_that_take_long_works_in_a_turn_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight of 260,000 empty records, 520 bytes each when sent, made another tenant's report take 1.8 s."""
    made: list[int] = []
    turn = 0

    def read_nothing(data: bytes) -> None:
        made.append(turn)
        raise ValueError(data)

    async def take_all() -> None:
        nonlocal turn
        service = Service(metrics := Metrics(), Outlets(metrics))
        data = logs_request(*8 * [(rank_resource(0), LogRecord(event_name="x"))])
        all_done = asyncio.gather(*[service.take(LOGS, data) for _ in range(8)])
        while not all_done.done():
            turn += 1
            await asyncio.sleep(0)
        await all_done

    monkeypatch.setattr(ingest, "read_record", read_nothing)
    monkeypatch.setattr(turns, "SECONDS", -1.0)  # over at once
    asyncio.run(take_all())
    assert len(made) == 8 * 8
    assert max(Counter(made[8:]).values()) == 1


def rejected(call: IncomingRequest, size: int) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        call.hold(size)
    return caught.value


def test_one_client_does_not_take_the_room_of_the_others() -> None:
    intake = make()
    with (
        intake.admit("a", "", TRACES) as first,
        intake.admit("a", "", TRACES) as second,
        intake.admit("b", "", TRACES) as other,
    ):
        first.hold(100)
        error = rejected(second, 60)
        assert (error.code, bool(error.delay)) == (otlp_status.UNAVAILABLE, True)
        other.hold(80)
        with intake.admit("a", "", TRACES), pytest.raises(RejectedError), intake.admit("a", "", TRACES):
            pass


def test_a_request_in_part_gives_way_to_one_of_another_tenant_and_frees_its_bytes() -> None:
    """Two addresses of one tenant hold all bytes; what is being processed does not give way."""

    async def play() -> list[bool]:
        intake = make()
        arrived: list[bool] = []
        here = asyncio.Event()

        async def part(client: str) -> None:
            with intake.admit(client, "", TRACES) as call:
                call.hold(70)
                call.hold(30 if client == "a" else 0)
                await here.wait()

        waiting = [asyncio.ensure_future(part(client)) for client in ("a", "b", "c")]
        await asyncio.sleep(0)
        with intake.admit("d", "", TRACES) as newcomer:
            newcomer.hold(20)
            await asyncio.sleep(0)
            arrived = [one.done() for one in waiting]
            with pytest.raises(RejectedError) as caught:
                await waiting[0]
            assert (caught.value.reason, bool(caught.value.delay)) == (Reason.GAVE_WAY, True)
        here.set()
        await asyncio.gather(*waiting[1:])
        assert (intake._in_flight.count, intake._in_flight.size) == (0, 0)
        return arrived

    assert asyncio.run(play()) == [True, False, False]


def test_a_client_is_not_asked_to_retry_a_request_over_the_limit() -> None:
    with make().admit("a", "", TRACES) as call:
        call.hold(60)
        error = rejected(call, 41)
        assert (error.code, error.delay) == (otlp_status.RESOURCE_EXHAUSTED, None)


def test_rank_reports_do_not_wait_behind_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        intake = make(Limits())
        blocked = asyncio.Event()
        service = intake._service

        async def take(signal: str, data: bytes, check_job: object) -> bytes:
            if signal == TRACES:
                await blocked.wait()
            return b""

        monkeypatch.setattr(service, "take", take)
        with contextlib.ExitStack() as stack:
            calls = [stack.enter_context(intake.admit(f"c{n}", "", TRACES)) for n in range(module.PARALLEL + 5)]
            waiting = [asyncio.ensure_future(intake.take(call, TRACES, b"")) for call in calls]
            await asyncio.sleep(0)
            assert await asyncio.wait_for(intake.take(calls[0], LOGS, b""), 5) == b""
            assert not any(one.done() for one in waiting)
            blocked.set()
            await asyncio.gather(*waiting)

    asyncio.run(play())


def test_a_fault_of_ours_is_an_answer_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> RejectedError:
        intake = make()

        async def take(signal: str, data: bytes, check_job: object) -> bytes:
            raise KeyError("odd")

        monkeypatch.setattr(intake._service, "take", take)
        with intake.admit("a", "", TRACES) as call, pytest.raises(RejectedError) as caught:
            await intake.take(call, TRACES, b"")
        return caught.value

    error = asyncio.run(play())
    assert error.code == otlp_status.INTERNAL
    assert "odd" not in str(error)


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


def test_every_reason_and_kind_of_a_rejected_request_is_in_the_table() -> None:
    labels = {label.name: label for label in FAMILIES["otel_fr_collector_requests_rejected"].labels}
    assert {reason.label for reason in Reason} == set(labels["reason"].values)
    assert {*METHODS, module.CONTROL, module.ATTRIBUTION} == set(labels["signal"].values)
