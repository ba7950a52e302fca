"""A job played beside a case in which the collector fails. It is healthy during the case, and hangs after it."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

import grpc

from tests.chaos.hub import Hub
from tests.support.grpc_calls import unary
from tests.support.played_job import REPORT_SECONDS, Job
from tests.support.times import RealTime
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for

STEP_SECONDS = 0.3
CULPRIT = 1


class Bystander:
    """Use it in a ``with`` block. It sends to the collector's address, which stays the same."""

    def __init__(self, hub: Hub, seed: int) -> None:
        self._hub = hub
        self._channel = grpc.insecure_channel(hub.grpc)
        self._job = Job(self, 2, f"bystander-{seed}", period=STEP_SECONDS)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Bystander:
        self._open.enter_context(self._channel)
        self._open.enter_context(self._job)
        self._end_steps = RealTime().every(STEP_SECONDS, self._step)
        self._open.callback(lambda: self._end_steps())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        with contextlib.suppress(grpc.RpcError):  # the collector is away
            return unary(self._channel, method)(data, **{"timeout": REPORT_SECONDS, **options})
        return b""

    def _step(self) -> None:
        with contextlib.ExitStack() as held:
            for rank in self._job.ranks:  # a report in flight, which may take long now, holds its rank's lock
                held.enter_context(rank.lock)
            calls = [rank.issue(self._job.world) for rank in self._job.ranks]
            spans = [self._job.ranks[call.rank].complete(call, send=False) for call in calls]
        for rank, span in zip(self._job.ranks, spans, strict=True):
            rank.send_spans([span])

    def hang(self, seconds: float) -> list[str]:
        """Let the job hang for up to so many seconds. Return what was wrong with its incidents before and then."""
        self._end_steps()
        early = [(one["category"], one["culprit_ranks"]) for one in self._hub.incidents(self._job.id)]
        self._job.skip(CULPRIT)

        def named() -> bool:
            causes = cause_incidents(self._hub.incidents(self._job.id))
            return any(one["culprit_ranks"] == [CULPRIT] for one in causes)

        wrong = [f"a healthy job beside it had incidents: {early}"] if early else []
        if not wait_for(named, seconds):
            wrong.append(f"the hang of a job beside it was not named: {self._hub.incidents(self._job.id)}")
        return wrong
