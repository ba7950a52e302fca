"""Receives the collector's commands to this rank over a gRPC stream. Everything else works without it.

The monitors of a run on one machine share one stream (`otel_fr.monitor.control.siblings`). The monitor that has it is
the watcher. It passes commands to the others, and they pass it their progress reports. A monitor that cannot reach the
others opens its own stream.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grpc

from otel_fr.control.v1.control_pb2 import Command, WatchRequest
from otel_fr.monitor.control import siblings
from otel_fr.monitor.control.node import run_folder, short_name
from otel_fr.monitor.control.pace import Inbox, Pace
from otel_fr.monitor.control.siblings import Hub, Line
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.monitor.rules import REPORT_SECONDS
from otel_fr.otlp_sender import GrpcTarget
from otel_fr.semconv import REPORT_INTERVAL_METADATA

METHOD = "/otel_fr.control.v1.Control/Watch"
LONGEST_INTERVAL = 60.0
"""Most seconds between two reports, whatever a collector allows."""
NOT_OFFERED_SECONDS = 60.0
"""Seconds until the next try if the server does not know the service, like any other OTLP receiver."""
COMMANDS_PER_SECOND, COMMANDS_AT_ONCE = 10.0, 200.0
"""How many commands are accepted. A collector sends two for each incident, and keeps 200 incidents open in a run."""
MAX_WAIT_SECONDS = 10.0
ALONE_SECONDS, LONGEST_ALONE_SECONDS = 10.0, 300.0
"""How long a monitor keeps its own stream before it searches again for the others of its machine, which may start
slowly. The time doubles after each failed search, up to the longest."""
OVERLAP_SECONDS = 0.25
"""How long a monitor still takes commands from a leaving watcher after another stream is open, so that none is lost."""
ENDED_PAUSE_SECONDS = 0.25
"""How long the monitor of an ended rank waits for another to become the watcher, because it will mostly end soon."""
UPDATE_SECONDS = 0.05
"""Shortest time between two requests of one stream."""
_FIRST_WAIT_SECONDS = 1.0
_ACCESS_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_OPTIONS = (("grpc.max_receive_message_length", siblings.MAX_PACKET - 1),)

_log = logging.getLogger("otel_fr.monitor")


class ControlClient:
    """Listens in a daemon thread. Puts commands into ``inbox``, then calls ``on_command``.

    Commands that come faster than `COMMANDS_PER_SECOND` wait in the collector, due to gRPC's flow control.

    Args:
        on_not_offered: called once, if the server does not know the service.
        folder: folder of the rings, where the monitors of a run on this machine meet. None: this monitor is alone.

    Attributes:
        is_first: returns True for the first monitor of this machine that asks. Only that monitor logs a refusal.
        on_report: called in the watcher with each request that another monitor passes to it.
    """

    def __init__(
        self,
        target: GrpcTarget,
        identity: Callable[[], RankIdentity],
        on_command: Callable[[], None],
        on_not_offered: Callable[[], None] = lambda: None,
        folder: Path | None = None,
    ) -> None:
        self._target = target
        self._identity = identity
        self._on_command = on_command
        self._on_not_offered: Callable[[], None] | None = on_not_offered
        self._folder = folder
        self._stop = threading.Event()
        self.inbox = Inbox()
        self._pace = Pace(COMMANDS_PER_SECOND, COMMANDS_AT_ONCE, time.monotonic())
        self.is_first: Callable[[str], bool] = lambda _: True
        self.on_report: Callable[[bytes], None] = lambda _: None
        self._refused = self._has_ended = False
        self._hub: Hub | None = None
        self._line: Line | None = None
        self._is_turn = False
        self._not_taken = 0
        self._end: Callable[[], object] | None = None
        """Ends the stream, or the line to the watcher, from which commands come."""
        self._source: object = None
        self._state = siblings.CLOSED
        self._alone_for = ALONE_SECONDS

    @property
    def listening(self) -> bool:
        """True if the stream of commands, this monitor's or the watcher's, is open or being opened."""
        return self._state != siblings.CLOSED

    @property
    def report_interval(self) -> float:
        """Seconds between reports that the collector allowed when the open stream began; 1 without a stream."""
        return max(REPORT_SECONDS, self._state)

    @property
    def lost(self) -> int:
        """Number of commands that this monitor, or its siblings if it is the watcher, did not take in time."""
        return self.inbox.lost + self._not_taken

    @property
    def siblings(self) -> int:
        """Number of other monitors for which this one sends reports."""
        hub = self._hub
        return len(hub.ranks()) if hub is not None and self._state > 0 else 0

    def pass_report(self, request: bytes) -> bool:
        """Pass a request to the watcher. Return False if this monitor must send it. May be called on any thread."""
        line = self._line
        return line is not None and self._source is line and self._state > 0 and line.pass_report(request)

    def begin_turn(self) -> None:
        """Make the siblings report now, because this monitor reports its progress."""
        hub = self._hub
        if hub is not None and self._state > 0:
            hub.begin_turn()

    def take_turn(self) -> bool:
        """Return True, once, if this monitor must report its progress together with the watcher."""
        is_turn, self._is_turn = self._is_turn, False
        return is_turn

    def start(self) -> None:
        threading.Thread(target=self._run, name="otel-fr-control", daemon=True).start()

    def note_end(self) -> None:
        """Note that the rank has ended, so that another monitor becomes the watcher if possible."""
        self._has_ended = True

    def stop(self) -> None:
        """Stop listening. A watcher passes commands on until another monitor takes over, for at most a second."""
        self._stop.set()
        hub = self._hub
        if hub is not None:
            hub.leave()
        self.reconnect()

    def reconnect(self) -> None:
        """Ask for the commands of the rank's new identity."""
        end = self._end
        if end is not None:
            end()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._take_part(self._identity())
            except Exception as error:  # noqa: BLE001 - control is optional
                _log.warning("no commands from the collector: %s: %s", type(error).__name__, error)
                self._stop.wait(NOT_OFFERED_SECONDS)

    def _take_part(self, identity: RankIdentity) -> None:
        """Be the watcher, or follow the watcher until it ends."""
        place, alone_for = self._take_place(identity), self._alone_for
        self._alone_for = ALONE_SECONDS if place is not None else min(2 * alone_for, LONGEST_ALONE_SECONDS)
        if isinstance(place, Line):
            self._follow(place, identity)
            if self._has_ended:
                self._stop.wait(ENDED_PAUSE_SECONDS)
            return
        if place is not None:
            place.on_report = self.on_report
        self._hub = place
        try:
            self._lead(identity, alone_for)
        finally:
            self._hub = None
            if place is not None:
                place.close()

    def _take_place(self, identity: RankIdentity) -> Hub | Line | None:
        if self._folder is None:
            return None
        target = self._target
        key = short_name(repr((identity.host, target.endpoint, target.insecure, target.headers)))
        return siblings.take(run_folder(self._folder, identity.run_id), key, identity.rank)

    # ---- another monitor watches

    def _follow(self, line: Line, identity: RankIdentity) -> None:
        """Take commands from the watcher, until the watcher or this monitor ends."""
        self._line, self._end = line, line.hang_up
        if self._stop.is_set() or self._identity().run_id != identity.run_id:
            line.hang_up()
        while packet := line.receive(siblings.MUTE_SECONDS) or line.receive(siblings.MUTE_SECONDS / 2):
            # A second try, because the time also passes while the machine itself is halted.
            if packet[:1] == siblings.LEAVING:
                self._line = None
                given = line, identity.run_id
                threading.Thread(target=self._read_on, args=given, name="otel-fr-handover", daemon=True).start()
                return
            if packet[:1] == siblings.STATE:
                self._note(line, siblings.state_in(packet))
            elif packet[:1] == siblings.TURN:
                self._begin_turn()
            else:
                self._put(Command.FromString(packet[1:]), len(packet), identity.run_id)
        self._hang_up(line)

    def _read_on(self, line: Line, run: str) -> None:
        """Take commands that a leaving watcher still passes on, until another stream is open."""
        end = None
        while not self._stop.is_set() and (end is None or time.monotonic() < end):
            if end is None and self._source is not line and self._state > 0:
                end = time.monotonic() + OVERLAP_SECONDS
            packet = line.receive(UPDATE_SECONDS)
            if packet == b"":
                break
            if packet is not None and packet[:1] == siblings.COMMAND:
                self._put(Command.FromString(packet[1:]), len(packet), run)
        self._hang_up(line)

    def _begin_turn(self) -> None:
        self._is_turn = True
        self._on_command()

    def _hang_up(self, line: Line) -> None:
        if self._line is line:
            self._line = None
            self._begin_turn()  # reports passed to the watcher may be lost
        self._note(line, siblings.CLOSED)
        line.hang_up()
        line.close()

    # ---- this monitor watches

    def _lead(self, identity: RankIdentity, alone_for: float) -> None:
        """Watch the stream until this monitor ends, its rank is in another run, or it must search for the others."""
        wait, again = _FIRST_WAIT_SECONDS, time.monotonic() + alone_for
        is_sharing = self._hub is not None or self._folder is None
        while not self._stop.is_set() and self._identity().run_id == identity.run_id:
            begun = time.monotonic()
            if not is_sharing and begun >= again:
                return
            try:
                received = self._watch(identity, None if is_sharing else again - begun)
                # A stream that delivered a command and then ended: the collector restarts.
                wait = _FIRST_WAIT_SECONDS if received else min(2 * wait, MAX_WAIT_SECONDS)
                pause = wait
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else None
                if code == grpc.StatusCode.UNIMPLEMENTED:
                    self._note_not_offered()
                    pause = NOT_OFFERED_SECONDS
                elif code in _ACCESS_DENIED and isinstance(error, grpc.Call):
                    if not self._refused and self.is_first(f"refused {error.details()}"):
                        _log.warning("no commands from the collector: %s", error.details())
                    self._refused = True
                    pause = NOT_OFFERED_SECONDS
                else:
                    if time.monotonic() - begun > MAX_WAIT_SECONDS:
                        wait = _FIRST_WAIT_SECONDS  # open for long: servers close old connections
                    pause = wait
                    wait = min(2 * wait, MAX_WAIT_SECONDS)
            self._stop.wait(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads the calls of a thousand ranks

    def _note_not_offered(self) -> None:
        tell, self._on_not_offered = self._on_not_offered, None
        if tell is not None:
            tell()

    def _watch(self, identity: RankIdentity, seconds: float | None) -> bool:
        """Watch one stream until it ends, after ``seconds`` at the latest. Return True if a command came."""
        received, is_over, stream = False, threading.Event(), None
        with self._target.channel(_OPTIONS) as channel:
            call = channel.stream_stream(METHOD, WatchRequest.SerializeToString, None)
            try:
                requests = _requests(identity, self._hub, is_over)
                stream = call(requests, timeout=seconds, metadata=self._target.headers)
                self._end = stream.cancel
                if self._stop.is_set() or self._identity().run_id != identity.run_id:
                    self.reconnect()
                self._say(stream, siblings.OPENING)
                self._say(stream, _interval_of(stream.initial_metadata()))
                for data in stream:
                    received = True
                    self._take_command(data, identity)
                    self._pace.spend(1.0, time.monotonic())
                    if wait := self._pace.wait(time.monotonic()):
                        self._stop.wait(wait)
            finally:
                is_over.set()
                self._end = None
                self._say(stream, siblings.CLOSED)
        return received

    def _say(self, stream: object, state: float) -> None:
        self._note(stream, state)
        if self._hub is not None:
            self._hub.say(state)

    def _take_command(self, data: bytes, identity: RankIdentity) -> None:
        command, hub = Command.FromString(data), self._hub
        if hub is not None:
            self._not_taken += hub.pass_on(data, command.ranks)
        if not command.ranks or identity.rank in command.ranks:
            self._put(command, len(data), identity.run_id)

    # ---- both

    def _put(self, command: Command, size: int, run: str) -> None:
        self.inbox.put(command, size, run)
        self._on_command()

    def _note(self, source: object, state: float) -> None:
        """Note the state of a stream. An open stream counts until it is closed or another stream is open."""
        if state > 0 or source is self._source or self._state <= 0:
            self._source, self._state = source, state


def _requests(identity: RankIdentity, hub: Hub | None, is_over: threading.Event) -> Iterator[WatchRequest]:
    """Yield a request at the beginning of a stream, and one whenever siblings have come or gone."""
    others: list[int] | None = None
    while not is_over.is_set():
        if hub is not None:
            hub.changed.clear()
        present = [] if hub is None else hub.ranks()
        if present != others:
            others = present
            yield WatchRequest(
                job_id=identity.job_id,
                attempt=identity.attempt,
                run_id=identity.run_id,
                rank=identity.rank,
                host_name=identity.host,
                pid=identity.pid,
                others=others,
            )
        if hub is None:
            return
        is_over.wait(UPDATE_SECONDS)
        hub.changed.wait(1.0)


def _interval_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> float:
    """Return the longest interval between progress reports, in seconds, for which the collector counts a rank as alive.

    A collector that sends no number expects a report every second.
    """
    value = next((value for key, value in metadata or () if key == REPORT_INTERVAL_METADATA), "")
    try:
        seconds = float(value)
    except ValueError:
        return REPORT_SECONDS
    return min(seconds, LONGEST_INTERVAL) if seconds >= REPORT_SECONDS else REPORT_SECONDS
