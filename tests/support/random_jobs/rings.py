"""Simulated jobs in real rings: writes each rank's calls as its recorder does, up to any simulated time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

from otel_fr.identity import group_id, run_id
from otel_fr.match import CallState, Ending, Rank
from otel_fr.match.model import WAIT_SHARE, WINDOW_MARGIN
from otel_fr.ring import (
    KIND_COLLECTIVE,
    KIND_P2P,
    GroupDef,
    ProcessState,
    RecordState,
    RingReader,
    RingWriter,
    SignatureDef,
    SiteDef,
)
from tests.support.random_jobs.programs import Op
from tests.support.random_jobs.simulation import NEVER, SimulatedCall
from tests.support.random_jobs.trials import Trial
from tests.support.random_jobs.views import WINDOW

STALL = (WINDOW + WINDOW_MARGIN) / WAIT_SHARE
"""The ranks' stall time, so that the collector's window is `WINDOW`, as in the evidence made in memory."""
CAPACITY = 4_096
"""Records of a ring that keeps everything. A random program has some hundred calls for each rank."""
_STATES = {CallState.COMPLETED: RecordState.COMPLETED, CallState.FAILED: RecordState.FAILED}


class Clock:
    """Replaces the module `time`. Simulated seconds are added to this machine's clocks at the start of the job."""

    def __init__(self) -> None:
        self.now = 0.0
        self._monotonic, self._wall = time.monotonic_ns(), time.time_ns()

    def at_ns(self, seconds: float) -> int:
        """Return the monotonic time, in nanoseconds, of a simulated second."""
        return self._monotonic + int(seconds * 1e9)

    def monotonic_ns(self) -> int:
        return self.at_ns(self.now)

    def monotonic(self) -> float:
        return self.monotonic_ns() / 1e9

    def time_ns(self) -> int:
        return self._wall + int(self.now * 1e9)

    def time(self) -> float:
        return self.time_ns() / 1e9

    @contextlib.contextmanager
    def used_by(self, *modules: ModuleType) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in modules:
                stack.enter_context(mock.patch.object(module, "time", self))
            yield


class RankRing:
    """The ring of one rank. `write` adds the calls, and the rank's end, that the clock has passed."""

    def __init__(self, folder: Path, trial: Trial, rank: int, clock: Clock, capacity: int = CAPACITY) -> None:
        self.rank = rank
        self.info = trial.ends.infos.get(rank) or Rank(rank)
        self.ends_at = trial.ends.at.get(rank, NEVER)
        self._clock = clock
        self._backend = "gloo" if trial.view.ends_shown else "nccl"
        self._timeout_ms = int(trial.job.timeout * 1000)
        self._steps = self._all_steps(trial.job.calls[rank])
        self._tickets: dict[SimulatedCall, int] = {}
        self._counts: dict[str, list[int]] = {}
        self._leaves = trial.seed % 2 == 0
        program = trial.job.program
        self._meta: dict[str, object] = {
            "rank": rank,
            "local_rank": rank,
            "world_size": program.world,
            "job_id": "job-7",
            "attempt": 0,
            "run_id": run_id("job-7", 0, "nonce"),
            "host": "node-1",
            "stall_seconds": STALL,
        }
        self.writer = RingWriter.create([folder], f"rank{rank}", capacity, self._meta)
        own = [group for group in program.groups if rank in group.ranks]
        self._groups = {
            group.id: self.writer.add_group(
                GroupDef(
                    group_id(group.name, group.ranks), group.name, group.description, group.ranks, self._backend, i
                )
            )
            for i, group in enumerate(own)
        }
        for raised in self.info.thread_exceptions:
            values = dict(zip(("type", "message"), raised.exception.split(": ", 1), strict=True))
            self.writer.add_thread_exception({**values, "site": raised.site, "thread": raised.thread, "stack": ""})

    def _all_steps(self, calls: list[SimulatedCall]) -> list[tuple[float, int, SimulatedCall]]:
        """Return (time, 0: enqueued or 1: ended, call), the latest first."""
        steps = [(call.enqueued, 0, call) for call in calls]
        if self._backend == "gloo":  # other backends show no ends
            steps += [(call.ended, 1, call) for call in calls if call.ended <= self.ends_at and call.ended < NEVER]
        return sorted(steps, key=lambda step: step[:2], reverse=True)

    def write(self) -> bool:
        """Write what has happened by now. Returns True if the rank's process has ended."""
        while self._steps and self._steps[-1][0] <= min(self._clock.now, self.ends_at):
            _, ends, call = self._steps.pop()
            self._end(call) if ends else self._enqueue(call)
        if self._clock.now < self.ends_at:
            return False
        self._finish()
        return True

    def _enqueue(self, call: SimulatedCall) -> None:
        op, writer = call.op, self.writer
        index = self._groups[op.group.id]
        kind = KIND_P2P if op.is_message else KIND_COLLECTIVE
        counts = self._counts.setdefault(op.group.id, [0, 0, 0])
        counts[kind] += 1
        counts[2] += 1
        what = _definition(op, self._backend)
        file, line, function = _frame(op.site)
        at = self._clock.at_ns(call.enqueued)
        ticket = self._tickets[call] = writer.append(
            index, writer.define_signature(what, what),
            writer.define_site(op.site, SiteDef(((file, line, function),))), writer.define_thread(1, "MainThread"),
            writer.generation, kind, 0, counts[0], counts[1], counts[2], call.pair_index, self._timeout_ms, at,
        )  # fmt: skip
        if self._backend != "gloo":
            writer.complete(ticket, index, 0, RecordState.UNKNOWN, 0)
        elif op.is_message:
            writer.wait(ticket, at)

    def _end(self, call: SimulatedCall) -> None:
        number = 0 if call.op.is_message else call.number
        ended = self._clock.at_ns(call.ended)
        self.writer.complete(self._tickets[call], self._groups[call.op.group.id], number, _STATES[call.state], ended)

    def _finish(self) -> None:
        """Write what the rank itself records about its end."""
        info = self.info
        if info.exception:
            kind, _, message = info.exception.partition(": ")
            self.writer.set_exception(
                {"type": kind, "message": message, "site": info.exception_site, "thread": "MainThread", "stack": ""}
            )
        if info.exception or info.ending is Ending.CLEAN:
            self.writer.set_meta({**self._meta, "exiting": True})
            self.writer.set_state(ProcessState.CLEAN if info.ending is Ending.CLEAN else ProcessState.EXITING)
        if info.ending is Ending.CLEAN and self._leaves:  # destroy_process_group
            for index in self._groups.values():
                self.writer.remove_group(index)

    def open(self) -> RingReader:
        return RingReader.open(self.writer.path)

    def remove(self) -> None:
        self.writer.close()
        self.writer.path.unlink()


def _definition(op: Op, backend: str) -> SignatureDef:
    what = op.signature
    return SignatureDef(
        operation=what.operation, backend=backend, input_sizes=what.input_sizes, output_sizes=what.output_sizes,
        input_dtypes=what.input_dtypes, output_dtypes=what.output_dtypes, reduce_op=what.reduce_op, root=what.root,
        peer=what.peer, tag=what.tag, input_splits=what.input_splits, output_splits=what.output_splits,
        input_bytes=0, output_bytes=0,
    )  # fmt: skip


def _frame(site: str) -> tuple[str, int, str]:
    place, _, function = site.partition(" ")
    file, _, line = place.partition(":")
    return file, int(line or 0), function
