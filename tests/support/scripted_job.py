"""A job with given calls and ends, played towards a collector's service on the test's own clock.

Reports and spans arrive as late as the test says; each rank's arrive in order. There is no gRPC and no OTLP: a run
receives Python objects.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from otel_fr_collector.incidents.resolution import Resolution
from otel_fr_collector.jobs.calls import RankCall, SpanCall, Template
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.run_spans import add_spans
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.service import Service

from otel_fr.match import CallState, Group, Place, Signature
from otel_fr.match.finding import CategoryName
from otel_fr.rank_report import ReportedException, ReportedExit, ReportedGroup
from tests.support.told import apply, told, told_group

TICK = 0.1
RUN = RunId("job", 0, "r")


@dataclass
class Scripted:
    """A call. Times are seconds of the test's clock.

    Attributes:
        ended: None: it stays in flight.
        error: if set, the call fails at ``ended``.
        begun: when its device began it; None: at ``issued``.
    """

    rank: int
    group: Group
    signature: Signature
    number: int
    issued: float
    ended: float | None = None
    stream: str = "collective"
    error: str | None = None
    record: int = 0
    begun: float | None = None

    def state(self, now: float) -> CallState:
        if self.ended is None or now < self.ended:
            return CallState.IN_FLIGHT
        return CallState.FAILED if self.error else CallState.COMPLETED

    def reported(self, now: float, sent: float) -> RankCall:
        state = self.state(sent)
        begun = self.issued if self.begun is None else self.begun
        is_queued = state is CallState.IN_FLIGHT and sent < begun
        return RankCall(
            self.rank, self.record, self.group.id, self.stream, self.number, self.signature, state,  # type: ignore[arg-type]
            site=f"train.py:{self.record} step", error=self.error if state is CallState.FAILED else None,
            enqueued_at=now - (sent - begun) if state is CallState.IN_FLIGHT and not is_queued else None,
            age=sent - self.issued if is_queued else None, is_queued=is_queued,
        )  # fmt: skip

    def span(self) -> SpanCall:
        assert self.ended is not None
        state = self.state(self.ended)
        template = Template(
            self.group, len(self.group.ranks), self.signature, 0, self.stream, state,  # type: ignore[arg-type]
            f"train.py:{self.record} step", self.error,
        )  # fmt: skip
        begun, ended = (int((1e9 + moment) * 1e9) for moment in (self.issued, self.ended))
        return template, self.number, self.record, 0, begun, ended, None


@dataclass
class Told:
    """The causes that a collector knows at one moment."""

    now: float
    causes: list[tuple[str, CategoryName, tuple[int, ...]]]
    """Id, category, culprits."""


@dataclass
class ScriptedJob:
    """The job, and the collector that receives its reports.

    Attributes:
        calls: of all ranks; each rank's calls are in order.
        raises: rank -> when an exception ends it. stopped: rank -> when its launcher ends it by SIGTERM.
        begins: rank -> when its monitor begins to report.
        report_delay, span_delay: rank -> seconds from the sending of a report, or a span, to its arrival.
    """

    world: Group
    calls: list[Scripted]
    stall: float = 2.0
    raises: dict[int, float] = field(default_factory=dict)
    stopped: dict[int, float] = field(default_factory=dict)
    begins: dict[int, float] = field(default_factory=dict)
    report_delay: Callable[[int], float] = lambda _: 0.02
    span_delay: Callable[[int], float] = lambda _: 0.05
    history: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        for rank in self.world.ranks:
            for record, call in enumerate((one for one in self.calls if one.rank == rank), 1):
                call.record = record
        self.now = 0.0
        metrics = Metrics()
        self.service = Service(metrics, Outlets(metrics), lambda: self.now, lambda: 1e9 + self.now)

    @property
    def run(self) -> Run:
        run = self.service.runs.get(RUN, self.now)
        assert run is not None
        return run

    def play(self, until: float) -> list[tuple[str, CategoryName, tuple[int, ...]]]:
        """Play the job until a time, and return the last causes. `history` has every change of the causes."""
        order = itertools.count()
        due = [(at, next(order), take) for at, take in self._events(until)]
        heapq.heapify(due)
        while self.now < until:
            while due and due[0][0] <= self.now:
                heapq.heappop(due)[2]()
            self.service.step()
            book = self.service.book
            causes = [
                (one.id, one.finding.category.value, one.finding.culprit_ranks)
                for one in book.known()
                if one.cause is None and (one.is_open or one.resolution is Resolution.ENDED)
            ]
            if not self.history or self.history[-1].causes != causes:
                self.history.append(Told(self.now, causes))
            self.now += TICK
        return self.history[-1].causes

    def _events(self, until: float) -> Iterator[tuple[float, Callable[[], None]]]:
        for rank in self.world.ranks:
            own = [call for call in self.calls if call.rank == rank]
            begin, end = self.begins.get(rank, 0.0), self.raises.get(rank, self.stopped.get(rank))
            for call in own:
                if call.ended is not None and (end is None or call.ended <= end):
                    yield float(int(call.ended) + 1) + self.span_delay(rank), self._spans_taker(rank, [call.span()])
            for number in itertools.count(1):
                sent = begin + number - 1 + 0.1 * rank
                if sent >= until:
                    break
                is_last = end is not None and sent >= end
                sent = end if is_last and end is not None else sent
                yield sent + self.report_delay(rank), self._report_taker(rank, number, sent, own, has_ended=is_last)
                if is_last:
                    break

    def _spans_taker(self, rank: int, spans: list[SpanCall]) -> Callable[[], None]:
        def take() -> None:
            self._note_origin(rank)
            add_spans(self.run, rank, spans, self.now)

        return take

    def _report_taker(
        self, rank: int, number: int, sent: float, own: Sequence[Scripted], *, has_ended: bool
    ) -> Callable[[], None]:
        def take() -> None:
            self._note_origin(rank)
            known = [call for call in own if call.issued <= sent]
            moved = max(
                [0.0, *(call.issued for call in known), *(c.ended for c in known if c.ended and c.ended <= sent)]
            )
            reported = [call.reported(self.now, sent) for call in known]
            values: dict[str, Any] = {}
            if has_ended and rank in self.raises:
                values = {"exit": ReportedExit(1), "exception": ReportedException("DistBackendError", "timed out")}
            elif has_ended:
                values = {"exit": ReportedExit(0, 15)}
            apply(
                self.run, rank, number, self.now, stall_s=self.stall, idle_s=sent - moved, records_creations=True,
                site="train.py:99 load", groups=_progress(known, sent, self.world),
                inflight=[call for call in reported if call.state is CallState.IN_FLIGHT],
                failed=tuple(told(call, self.now) for call in reported if call.state is CallState.FAILED),
                last=told(reported[-1], self.now) if reported else None, **values,
            )  # fmt: skip

        return take

    def _note_origin(self, rank: int) -> None:
        size = len(self.world.ranks)
        self.run.note_origin(rank, place=Place("h", rank, rank), world_size=size, resource={}, now=self.now)


def _progress(known: Sequence[Scripted], sent: float, world: Group) -> tuple[ReportedGroup, ...]:
    groups = {world.id: world} | {call.group.id: call.group for call in known}
    found = []
    for group in groups.values():
        own = [call for call in known if call.group.id == group.id and call.stream == "collective"]
        done = [call.number for call in own if call.state(sent) is CallState.COMPLETED]
        enqueued = max((call.number for call in own), default=0)
        found.append(told_group(group, enqueued, max(done, default=0)))
    return tuple(found)
