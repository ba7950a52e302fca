"""The control streams: commands from the collector to the rank monitors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator

from otel_fr.control.v1 import control_pb2
from otel_fr_collector.jobs.origins import make_run_id
from otel_fr_collector.jobs.run import RunId

MAX_PENDING = 16
"""Commands queued for one monitor; when it does not read, the oldest are dropped."""
MAX_WATCHERS = 65_536


class TooManyWatchersError(Exception):
    """No more monitors can be served."""


class Watcher:
    """One monitor that watches; iterate over it for its commands, serialised."""

    def __init__(self) -> None:
        self._commands: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_PENDING)

    def put(self, command: bytes) -> None:
        """Queue a command; the oldest is dropped if there are `MAX_PENDING`."""
        self._put(command)

    def end(self) -> None:
        """End the iteration."""
        self._put(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (command := await self._commands.get()) is not None:
            yield command

    def _put(self, item: bytes | None) -> None:
        if self._commands.full():
            self._commands.get_nowait()
        self._commands.put_nowait(item)


class Control:
    """The monitors that watch, by job and run: tokens are checked for jobs, so no job gets another's commands."""

    def __init__(self) -> None:
        self._watchers: dict[tuple[str, str], set[Watcher]] = {}
        self._count = 0

    @contextlib.contextmanager
    def watch(self, request: control_pb2.WatchRequest) -> Iterator[Watcher]:
        """While the context is open, the monitor receives its run's commands, until `close`.

        Raises:
            TooManyWatchersError: there are `MAX_WATCHERS` already.
        """
        if self._count >= MAX_WATCHERS:
            raise TooManyWatchersError
        run_id = make_run_id(request.job_id, request.attempt, request.run_id)
        run = run_id.job, run_id.run
        watcher = Watcher()
        self._watchers.setdefault(run, set()).add(watcher)
        self._count += 1
        try:
            yield watcher
        finally:
            self._count -= 1
            own = self._watchers[run]
            own.discard(watcher)
            if not own:
                del self._watchers[run]

    def dump(self, run: RunId, incident: str, reason: str) -> int:
        """Ask all monitors of a run for their flight-recorder files; returns how many monitors."""
        return self._send(run, control_pb2.Command(dump=control_pb2.Dump(incident_id=incident, reason=reason)))

    def peer_failed(self, run: RunId, incident: str, ranks: Iterable[int], reason: str) -> int:
        """Send all monitors of a run the ranks that have failed; returns how many monitors."""
        failed = control_pb2.PeerFailed(incident_id=incident, ranks=list(ranks), reason=reason)
        return self._send(run, control_pb2.Command(peer_failed=failed))

    def close(self) -> None:
        """End all streams."""
        for own in self._watchers.values():
            for watcher in own:
                watcher.end()

    def _send(self, run: RunId, command: control_pb2.Command) -> int:
        data = command.SerializeToString()
        own = self._watchers.get((run.job, run.run), set())
        for watcher in own:
            watcher.put(data)
        return len(own)
