"""The collector's HTTP side with a job of any size, set up at once: thousands of ranks, each in ten process groups."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from msgspec import structs
from otel_fr_collector.control import Watcher
from otel_fr_collector.incidents.incident import IncidentChange
from otel_fr_collector.jobs.calls import Interner, RankCall
from otel_fr_collector.jobs.history import Sample
from otel_fr_collector.jobs.numbers import Durations, Key, Numbers, Series
from otel_fr_collector.jobs.rank_reports import Contents
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.http_server import HttpServer
from otel_fr_collector.otlp.metric_points import ExemplarOf
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.service import Service
from otel_fr_collector.web.app import make_app
from otel_fr_collector.web.finished import Finished
from otel_fr_collector.web.job_views import job_key

from otel_fr import identity
from otel_fr.control.v1 import control_pb2
from otel_fr.incident import CollectorIncidentData
from otel_fr.match import CallState, Category, Ending, Finding, Group, Place, Signature
from otel_fr.rank_report import RankReport
from otel_fr.waits.blocks import Block, Late
from tests.support.waiting import PATIENCE

_T = TypeVar("_T")
AHEAD = 3_600.0
"""Seconds by which the ranks' last reports lie in the future, so that none falls silent during a test."""


class Monitors:
    """The monitors of a staged run."""

    watcher: Watcher

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def next_command(self) -> control_pb2.Command:
        """Wait for the next command, and return it."""

        async def take() -> bytes:
            async for command in self.watcher:
                return command
            raise AssertionError("the stream has ended")

        return control_pb2.Command.FromString(self._stage.do(take()))


class Stage:
    """A server at ``url``. Tests change its state in its event loop, with `do`."""

    def __init__(self) -> None:
        self.service = Service(metrics := Metrics(), Outlets(metrics))
        self.loop = asyncio.new_event_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.finished = Finished(self.service)
        self._server = HttpServer(make_app(self.service, finished=self.finished), listener)
        self._contexts: list[AbstractContextManager[Watcher]] = []
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Stage:
        self._thread.start()
        self.loop.call_soon_threadsafe(self._server.start)
        self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self.finished.run()))
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()

    async def _end(self) -> None:
        for context in self._contexts:
            context.__exit__(None, None, None)
        self.service.outlets.event_stream.close()
        await self._server.stop(PATIENCE)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def job(self, world: int, name: str = "job-7", run_id: str = "") -> Run:
        """Make a job, and show it. All its ranks run and are level in every group."""
        now = time.monotonic()
        run = Run(RunId(name, 0, run_id or f"run-{name}"), now, now + AHEAD, world_size=world)
        everyone = range(world)
        self._group(run, "0", "default_pg", everyone)
        for number in range(7):
            self._group(run, f"shard_{number}", f"shard_{number}", everyone)
        for first in range(0, world, 8):
            self._group(run, f"tp_{first}", "tp", range(first, min(first + 8, world)))
        for first in range(min(8, world)):
            self._group(run, f"dp_{first}", "dp", range(first, world, 8))
        for rank in everyone:
            state = run.rank_state(rank)
            assert state is not None
            state.report = RankReport(rank, 9, (), idle_s=0.1)
            state.arrived, state.place = now + AHEAD, Place(f"node-{rank // 8}", 4_000 + rank, rank % 8)

        async def show() -> None:
            self.service.runs.by_id[run.id] = run

        self.do(show())
        return run

    def key(self, run: Run) -> str:
        return job_key(run.id)

    def hang(self, run: Run, culprit: int, *, with_consequence: bool = False) -> CollectorIncidentData:
        """Let all ranks but one wait in the next collective of the world's group, and publish it."""
        return self.do(self._hang(run, culprit, with_consequence))

    async def _hang(self, run: Run, culprit: int, with_consequence: bool) -> CollectorIncidentData:
        now = time.monotonic()
        world = next(place.group for place in run.groups.values() if place.group.description == "default_pg")
        signature = Interner().signature(Signature("all_reduce", ((3,),), ((3,),), ("Float",), ("Float",), "sum"))
        for state in run.ranks.values():
            assert state.report is not None
            state.report = structs.replace(state.report, idle_s=7.5)
            if state.rank == culprit:
                state.site = "/job/data.py:17 load"
                continue
            run.note_progress(state, world.id, 101, 100)
            call = RankCall(
                rank=state.rank, record=5, group=world.id, stream="collective", sequence_id=101, signature=signature,
                state=CallState.IN_FLIGHT, enqueued_at=now - 7.5,
            )  # fmt: skip
            state.contents = Contents([call])
            run.waiting[state.rank] = state
        others = tuple(rank for rank in run.ranks if rank != culprit)
        finding = Finding(
            key="hang",
            rule="absent_rank",
            category=Category.MISSING_RANK,
            group=world,
            operation="all_reduce",
            sequence_id=101,
            stream="collective",
            culprit_ranks=(culprit,),
            waiting_ranks=others,
            summary=f"rank {culprit} did not join all_reduce number 101 of group default_pg (0)",
            call_sites={culprit: "/job/data.py:17 load", **dict.fromkeys(others, "/job/train.py:42 step")},
            places={culprit: run.ranks[culprit].place},
            stacks={culprit: 'Thread 0x1 (most recent call first):\n  File "/job/data.py", line 17 in load'},
        )
        tp = next(place.group for place in run.groups.values() if place.group.description == "tp")
        later = dataclasses.replace(
            finding, key="later", caused_by="hang", group=tp, culprit_ranks=(), summary="ranks of tp wait for it, too"
        )
        return self.publish(run, [finding, later] if with_consequence else [finding], now)[0].data

    def publish(self, run: Run, findings: list[Finding], now: float) -> list[IncidentChange]:
        """Publish the engine's findings about a run. Call in the event loop."""
        book, keys = self.service.book, {one.key for one in findings}
        over = {one.id for one in book.open_faults(run.id) if keys.isdisjoint(one.keys)}
        changes = book.update(run, findings, now=now, wall=time.time(), enqueued={}, over=over)
        for change in changes:
            self.service.outlets.event_stream.publish(change)
        return changes

    def communicate(self, run: Run) -> None:
        """Add numbers as if the ranks had communicated and waited for rank 1."""

        async def fill() -> None:
            now = time.monotonic()
            run.numbers = Numbers(run.usage)
            key = Key("all_reduce", "default_pg", 8, "nccl", "bfloat16", "16MiB")
            slow = ExemplarOf(0.4, time.time(), "ab" * 16, "cd" * 8, "train.py:7 <b>step</b>")
            run.numbers.series[key] = Series(
                80,
                8e8,
                Durations(8.0, [0] * 9 + [80], slow),
                Durations(4.8, [0] * 9 + [80]),
                Durations(3.2, [0] * 9 + [80]),
            )
            run.numbers.bounds = tuple(range(1, 10))
            group = next(iter(run.groups.values()))
            tally = group.waits.tallies.of(1)
            assert tally is not None
            tally.waited_for, tally.came_last = 12.5, 90
            group.waits.blocks.kept = deque(Block(second, (Late(1, 0.4, 1),), 0.0) for second in range(50))
            group.waits.blocks.until, group.waits.lost = 50.0, 32.0
            for number in range(8):
                at = now - 15 * (8 - number)
                run.history.add(Sample(at, 30.0 * number, 1e8 * number, 4.0 * number, 2e9, 0.25, 120.0 * number, 8))

        self.do(fill())

    def watch(self, run: Run) -> Monitors:
        """Return monitors of the run that take commands."""
        return self.do(self._watch(run))

    async def _watch(self, run: Run) -> Monitors:
        request = control_pb2.WatchRequest(job_id=run.id.job, attempt=run.id.attempt, run_id=run.id.run)
        monitors = Monitors(self)
        context = self.service.control.watch(request)
        monitors.watcher = context.__enter__()
        self._contexts.append(context)
        return monitors

    def answer_stacks(self, run: Run, functions: dict[int, str]) -> None:
        """Send stacks as the ranks' monitors do. ``functions``: rank -> its function, in line 42 of the script."""

        async def answer() -> None:
            for rank, name in functions.items():
                stack = f'Thread MainThread (most recent call last):\n  File "/job/train.py", line 42, in {name}\n'
                self.service.ingest.stack_requests.add(run.id, rank, stack)

        self.do(answer())

    def end(self, run: Run) -> None:
        """End the job cleanly, and drop its run as if that was long ago."""

        async def drop() -> None:
            for state in run.ranks.values():
                state.ended, state.ending = time.monotonic(), Ending.CLEAN
            del self.service.runs.by_id[run.id]
            self.service.on_dropped(run)

        self.do(drop())

    def recover(self, run: Run) -> None:
        """End the fault."""

        async def end() -> None:
            self.publish(run, [], time.monotonic())

        self.do(end())

    def _group(self, run: Run, name: str, description: str, members: range) -> None:
        group = Group(identity.group_id(name, members), name, description, tuple(members))
        run.group_state(group, len(members))
        for rank in members:
            state = run.rank_state(rank)
            assert state is not None
            run.note_progress(state, group.id, 100, 100)
