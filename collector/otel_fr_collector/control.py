"""The control streams: commands from the collector to the rank monitors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Sequence

from otel_fr.control.v1 import control_pb2
from otel_fr_collector.jobs.origins import make_run_id
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.network.tokens import tenant_of
from otel_fr_collector.shares import Holdings, Owner
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

MAX_PENDING = 16
"""Commands queued for one monitor. If it does not read them, the oldest are dropped."""
MAX_INCIDENTS = 6
"""Open incidents, the oldest first, that a monitor receives when it begins to watch. Its queue has room for more."""
MAX_CULPRITS = 64
"""Culprits that a command names. Further culprits are stuck for the same reason."""
MAX_WATCHERS = 65_536
MAX_RANKS = 256
"""Ranks that one stream serves, as many as a monitor watches for (otel_fr/monitor/control/siblings.py)."""


class TooManyWatchersError(Exception):
    """There are `MAX_WATCHERS` already, and none of them gives way to a new one (`otel_fr_collector.shares`)."""


class Watcher:
    """A monitor's control stream, mostly for all ranks of its machine. Iterating over it yields serialised commands.

    Attributes:
        ranks: the ranks that the monitor watches for.
    """

    def __init__(self, run: tuple[str, str]) -> None:
        self.run = run
        self.ranks: tuple[int, ...] = ()
        self._commands: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_PENDING)

    def put(self, command: bytes, ranks: Container[int] | None = None) -> int:
        """Queue a command for these ranks, or for all. If `MAX_PENDING` are queued, the oldest is dropped.

        Returns:
            number of the monitor's ranks that the command is for.
        """
        own = self.ranks if ranks is None else tuple(rank for rank in self.ranks if rank in ranks)
        if own:
            # Two serialised messages of one type, concatenated, are the message with the fields of both.
            one_by_one = len(own) < len(self.ranks)
            self._put(command + control_pb2.Command(ranks=own).SerializeToString() if one_by_one else command)
        return len(own)

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
    """The control streams by job and run. Tokens are checked for the job, so no job gets another's commands.

    Args:
        tenant_of: the tenant of a job's name.

    Attributes:
        count: number of streams.
    """

    def __init__(self, tenant_of: Callable[[str], str] = tenant_of) -> None:
        self._tenant_of = tenant_of
        self._watchers: dict[tuple[str, str], set[Watcher]] = {}
        self._by_owner: dict[Owner, dict[Watcher, None]] = {}
        self._standing: dict[tuple[str, str], list[bytes]] = {}
        self._incidents: dict[tuple[str, str], dict[str, control_pb2.Incident]] = {}
        self._held = Holdings()
        self._log = Throttle()
        self.count = 0

    @contextlib.contextmanager
    def watch(self, request: control_pb2.WatchRequest) -> Iterator[Watcher]:
        """Send the monitor commands for its ranks while the context is open, or until `close`.

        Beyond `MAX_WATCHERS` streams, the tenant with the most loses the newest stream of its job with the most.

        Raises:
            TooManyWatchersError: no stream gives way to this one.
        """
        run_id = make_run_id(request.job_id, request.attempt, request.run_id)
        owner = Owner(self._tenant_of(run_id.job), run_id.job)
        if self.count >= MAX_WATCHERS:
            self._make_room(owner)
        run = run_id.job, run_id.run
        watcher = Watcher(run)
        self._watchers.setdefault(run, set()).add(watcher)
        self._by_owner.setdefault(owner, {})[watcher] = None
        self._held.add(owner)
        self.count += 1
        self.serve(watcher, request)
        try:
            yield watcher
        finally:
            own = self._watchers[run]
            own.discard(watcher)
            if not own:
                del self._watchers[run]
            self._release(owner, watcher)

    def serve(self, watcher: Watcher, request: control_pb2.WatchRequest) -> None:
        """Serve the ranks of this request from now on. For new ranks, send the standing commands and open incidents."""
        known = watcher.ranks
        watcher.ranks = tuple(dict.fromkeys((request.rank, *request.others[: MAX_RANKS - 1])))
        news = set(watcher.ranks).difference(known)
        for command in self._standing.get(watcher.run, ()):
            watcher.put(command, news)
        for incident in list(self._incidents.get(watcher.run, {}).values())[:MAX_INCIDENTS]:
            watcher.put(control_pb2.Command(incident=incident).SerializeToString(), news)

    def _make_room(self, newcomer: Owner) -> None:
        loser = self._held.gives_way(newcomer)
        if self._log.allows():
            job = (loser or newcomer).job
            _log.error("limit of %d control streams reached: ending one of job %r", MAX_WATCHERS, job)
        if loser is None:
            raise TooManyWatchersError
        newest = next(reversed(self._by_owner[loser]))
        newest.end()
        self._release(loser, newest)

    def _release(self, owner: Owner, watcher: Watcher) -> None:
        """Free the watcher's room. It may have been released before."""
        own = self._by_owner.get(owner, {})
        if watcher not in own:
            return
        del own[watcher]
        if not own:
            del self._by_owner[owner]
        self._held.add(owner, -1)
        self.count -= 1

    def dump(self, run: RunId, incident: str, reason: str, page_url: str = "", trace: str | None = None) -> int:
        """Ask all monitors of a run for their flight-recorder files; returns the number of ranks reached.

        Args:
            trace: id of the incident's trace, in hex. Monitors that sample spans send all spans of this trace.
        """
        trace_id = bytes.fromhex(trace or "")
        dump = control_pb2.Dump(incident_id=incident, reason=reason, page_url=page_url, trace_id=trace_id)
        return self.send(run, control_pb2.Command(dump=dump))

    def tell(self, run: RunId, incident: control_pb2.Incident) -> None:
        """Send an incident of a run to all of its monitors, for the job's log, unless they have it in this state."""
        key = run.job, run.run
        known = self._incidents.setdefault(key, {})
        if incident.is_over:
            is_news = known.pop(incident.incident_id, None) is not None
        else:
            is_news = known.get(incident.incident_id) != incident
            known[incident.incident_id] = incident
        if not known:
            del self._incidents[key]
        if is_news:
            self.send(run, control_pb2.Command(incident=incident))

    def forget(self, run: RunId) -> None:
        """Drop the incidents of a run that is over."""
        self._incidents.pop((run.job, run.run), None)

    def inspect(self, run: RunId, incident: str, ranks: Sequence[int]) -> None:
        """Ask the monitors of the first `MAX_CULPRITS` of these ranks for native stacks."""
        inspect = control_pb2.Inspect(incident_id=incident, ranks=ranks[:MAX_CULPRITS])
        self.send(run, control_pb2.Command(inspect=inspect))

    def take_stacks(self, run: RunId, ranks: Container[int] | None = None) -> int:
        """Ask the monitors of these ranks, or of all, for the ranks' stacks; returns the number of ranks reached."""
        return self.send(run, control_pb2.Command(take_stacks=control_pb2.TakeStacks()), ranks)

    def report(self, run: RunId, ranks: Container[int]) -> None:
        """Ask the monitors of these ranks for a full report."""
        self.send(run, control_pb2.Command(report=control_pb2.Report()), ranks)

    def fetch_calls(self, run: RunId, ranks: Container[int], group: str, first: int, last: int) -> None:
        """Ask the monitors of these ranks for the ranks' collectives number ``first`` to ``last``."""
        wanted = control_pb2.FetchCalls(group_id=group, first=first, last=last)
        self.send(run, control_pb2.Command(fetch_calls=wanted), ranks)

    def watching(self, run: RunId) -> set[int]:
        """The ranks of the run for which a monitor watches."""
        return {rank for watcher in self._watchers.get((run.job, run.run), ()) for rank in watcher.ranks}

    def send(self, run: RunId, command: control_pb2.Command, ranks: Container[int] | None = None) -> int:
        """Send a command to the monitors of these ranks of a run, or of all; returns the number of ranks reached."""
        data = command.SerializeToString()
        return sum(watcher.put(data, ranks) for watcher in self._watchers.get((run.job, run.run), ()))

    def watches(self, run: RunId) -> bool:
        """Whether some monitor of the run watches."""
        return (run.job, run.run) in self._watchers

    def set_standing(self, run: RunId, commands: Iterable[control_pb2.Command]) -> None:
        """Set the commands that a monitor receives when it begins to watch for a rank. The last `MAX_PENDING` count."""
        standing = [command.SerializeToString() for command in commands]
        if standing:
            self._standing[(run.job, run.run)] = standing
        else:
            self._standing.pop((run.job, run.run), None)

    def close(self) -> None:
        """End all streams."""
        for own in self._watchers.values():
            for watcher in own:
                watcher.end()
