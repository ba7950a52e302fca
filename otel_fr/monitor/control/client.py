"""Commands of the collector to this rank, from a gRPC stream. Everything else works without it."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from queue import Queue

import grpc

from otel_fr.control.v1.control_pb2 import Command, WatchRequest
from otel_fr.monitor.control.pace import Pace
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.monitor.rules import REPORT_SECONDS
from otel_fr.otlp_sender import GrpcTarget
from otel_fr.semconv import REPORT_INTERVAL_METADATA

METHOD = "/otel_fr.control.v1.Control/Watch"
LONGEST_INTERVAL = 60.0
"""Seconds between two reports, whatever a collector allows."""
NOT_OFFERED_SECONDS = 60.0
"""Until the next try at a server that does not know the service (any other OTLP receiver)."""
MAX_WAITING = 16
"""Commands that wait to be carried out; with more, the stream is read no further until one was."""
COMMANDS_PER_SECOND, COMMANDS_AT_ONCE = 10.0, 200.0
"""Commands that are taken: a collector sends two for each incident, and keeps 200 open in a run."""
MAX_WAIT_SECONDS = 10.0
_FIRST_WAIT_SECONDS = 1.0
_ACCESS_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_OPTIONS = (("grpc.max_receive_message_length", 1 << 20),)

_log = logging.getLogger("otel_fr.monitor")


class ControlClient:
    """Listens in a daemon thread. Commands are put into ``commands``, then ``on_command`` is called.

    Commands that come faster than `COMMANDS_PER_SECOND` wait in the collector, by gRPC's flow control.

    Args:
        on_not_offered: called once, if the server does not know the service.

    Attributes:
        report_interval: as the collector said at the beginning of the stream that is open; 1 if none is.
        is_first: True for the first monitor of this machine that asks this; only that one logs a refusal.
    """

    def __init__(
        self,
        target: GrpcTarget,
        identity: Callable[[], RankIdentity],
        on_command: Callable[[], None],
        on_not_offered: Callable[[], None] = lambda: None,
    ) -> None:
        self._target = target
        self._identity = identity
        self._on_command = on_command
        self._on_not_offered: Callable[[], None] | None = on_not_offered
        self._stop = threading.Event()
        self.commands: Queue[Command] = Queue(MAX_WAITING)
        self._pace = Pace(COMMANDS_PER_SECOND, COMMANDS_AT_ONCE, time.monotonic())
        self.is_first: Callable[[str], bool] = lambda _: True
        self._refused = False
        self._cancel: Callable[[], object] | None = None
        self.report_interval = REPORT_SECONDS
        self.listening = False
        """The stream of commands is open."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="otel-fr-control", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def reconnect(self) -> None:
        """The identity has changed: ask for its commands."""
        cancel = self._cancel
        if cancel is not None:
            cancel()

    def _run(self) -> None:
        wait = _FIRST_WAIT_SECONDS
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                received = self._watch()
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
            except Exception as error:  # noqa: BLE001 - control is optional
                _log.warning("no commands from the collector: %s: %s", type(error).__name__, error)
                pause = NOT_OFFERED_SECONDS
            self._stop.wait(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads the calls of a thousand ranks

    def _note_not_offered(self) -> None:
        tell, self._on_not_offered = self._on_not_offered, None
        if tell is not None:
            tell()

    def _watch(self) -> bool:
        """One stream, until it ends; True if a command came."""
        target, identity = self._target, self._identity()
        received = False
        with target.channel(_OPTIONS) as channel:
            call = channel.unary_stream(
                METHOD, request_serializer=WatchRequest.SerializeToString, response_deserializer=Command.FromString
            )
            request = WatchRequest(
                job_id=identity.job_id,
                attempt=identity.attempt,
                run_id=identity.run_id,
                rank=identity.rank,
                host_name=identity.host,
                pid=identity.pid,
            )
            self.listening = True
            try:
                stream = call(request, metadata=target.headers)
                self._cancel = stream.cancel
                if self._identity().run_id != identity.run_id:
                    self.reconnect()
                self.report_interval = _interval_of(stream.initial_metadata())
                for command in stream:
                    received = True
                    self.commands.put(command)
                    self._on_command()
                    self._pace.spend(1.0, time.monotonic())
                    if wait := self._pace.wait(time.monotonic()):
                        self._stop.wait(wait)
            finally:
                self.report_interval = REPORT_SECONDS
                self.listening = False
                self._cancel = None
        return received


def _interval_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> float:
    """How many seconds apart progress reports may be for the collector to count the rank as alive.

    A collector that does not say it, or says no number, takes a rank that does not report each second for silent.
    """
    value = next((value for key, value in metadata or () if key == REPORT_INTERVAL_METADATA), "")
    try:
        seconds = float(value)
    except ValueError:
        return REPORT_SECONDS
    return min(seconds, LONGEST_INTERVAL) if seconds >= REPORT_SECONDS else REPORT_SECONDS
