"""When PyTorch's recorder is asked, and what becomes of its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from otel_fr.monitor.device_calls import DeviceCalls
from otel_fr.monitor.recorder_calls import RecorderCalls
from otel_fr.monitor.recorder_client import CALLS_SECONDS, RecorderClient, Snapshot
from otel_fr.monitor.recorder_entries import Entry
from otel_fr.monitor.unseen_calls import UnseenCalls
from otel_fr.torch_recorder import HANDLERS, SOCKET_KEY, shows_ends

_LOOK_SECONDS: Final = 1.0
"""Between two looks into the ring's meta, until it names the socket: the rank opens it with its first device group."""
_CALL_LOOK_SECONDS: Final = 0.1
"""The same where a call of a device is there: what is not known to be read is not held, and a first call may hang."""


class RecorderWatch:
    """Has the recorder asked while there are calls that only it can tell of.

    Args:
        meta: of the rank's ring. calls: what takes the place of its calls; None: it has them itself.
        wake: ends the wait of the monitor's loop, from any thread.
        unseen: takes the calls that only the recorder has; None: nothing does.
    """

    def __init__(
        self,
        meta: Callable[[], Mapping[str, object]],
        devices: DeviceCalls,
        calls: RecorderCalls | None,
        wake: Callable[[], None],
        unseen: UnseenCalls | None = None,
    ) -> None:
        self._meta = meta
        self._devices = devices
        self._calls = calls
        self._wake = wake
        self._unseen = unseen
        self._client: RecorderClient | None = None
        self._look_at = self._call_look_at = 0.0
        devices.connect = self._connect_for_call

    @property
    def is_busy(self) -> bool:
        """It has been asked, and its answer was not taken yet."""
        return self._client is not None and self._client.is_busy

    def step(self, now: float, *, at_once: bool = False) -> None:
        """Take answers, and ask again if it is time to.

        Args:
            now: monotonic seconds. at_once: ask however short ago it was asked.
        """
        if self._client is None and now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._connect()
        client = self._client
        if client is None:
            return
        self._take_results(client)
        is_wanted = self._calls is not None or self._unseen is not None or self._devices.are_any_held
        if is_wanted or client.is_lost:
            client.ask(now, at_once=at_once)

    def _take_results(self, client: RecorderClient) -> None:
        devices = self._devices
        while not client.results.empty():
            snapshot = client.results.get()
            if snapshot is not None and self._calls is not None:
                self._calls.note(snapshot.entries, snapshot.asked_ns, snapshot.wall_offset_ns)
            elif snapshot is not None:
                devices.is_read = True
                entries = snapshot.entries if self._unseen is None else self._compare(self._unseen, snapshot)
                devices.note(entries, snapshot.asked_ns, snapshot.wall_offset_ns)
            elif client.is_lost:
                devices.lose()
                if self._calls is not None:
                    self._calls.lose()

    def _compare(self, unseen: UnseenCalls, snapshot: Snapshot) -> list[Entry]:
        """The entries of the ring's calls whose ends only the recorder shows."""
        found = unseen.note(snapshot.entries, snapshot.asked_ns, snapshot.wall_offset_ns)
        return [entry for entry in found if shows_ends([entry.name.backend])]

    def settle(self) -> bool:
        """The rank ends: no more than now will be known. True: of some calls more is known than before."""
        others = self._unseen is not None and self._unseen.settle()
        return (self._calls is not None and self._calls.settle()) or others

    def close(self) -> None:
        """The rank has ended."""
        self._devices.lose(is_over=True)
        if self._client is not None:
            self._take_results(self._client)
        self.settle()

    def _connect_for_call(self) -> None:
        now = time.monotonic()
        if self._client is None and now >= self._call_look_at:
            self._call_look_at = now + _CALL_LOOK_SECONDS
            self._connect()

    def _connect(self) -> None:
        """Begin to read the recorder, if the ring names its socket."""
        path = self._meta().get(SOCKET_KEY)
        if not isinstance(path, str) or not path:
            return
        self._devices.is_read = self._calls is None
        if self._unseen is not None:
            self._client = RecorderClient(path, self._wake, HANDLERS)
        elif self._calls is None:
            self._client = RecorderClient(path, self._wake)
        else:
            self._client = RecorderClient(path, self._wake, HANDLERS, CALLS_SECONDS)
