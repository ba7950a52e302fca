"""Decides when PyTorch's recorder is asked, and passes its answers on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from otel_fr.monitor.nccl.device_calls import DeviceCalls
from otel_fr.monitor.nccl.recorder_client import RecorderClient
from otel_fr.torch_recorder import SOCKET_KEY

_LOOK_SECONDS: Final = 1.0
"""Time between two looks for the socket in the ring's meta. The rank adds it with the first device group."""
_CALL_LOOK_SECONDS: Final = 0.1
"""The same once there is a call of a device. Calls are held only if the recorder is read, and a first call may hang."""


class RecorderWatch:
    """Asks the recorder while there are calls whose end only the recorder shows.

    Args:
        meta: returns the meta of the rank's ring.
        devices: takes the answers.
        wake: ends the wait of the monitor's loop. May be called on any thread.
    """

    def __init__(
        self, meta: Callable[[], Mapping[str, object]], devices: DeviceCalls, wake: Callable[[], None]
    ) -> None:
        self._meta = meta
        self._devices = devices
        self._wake = wake
        self._client: RecorderClient | None = None
        self._look_at = self._call_look_at = 0.0
        devices.connect = self._connect_for_call

    @property
    def is_busy(self) -> bool:
        """True if the recorder was asked and its answer was not taken yet."""
        return self._client is not None and self._client.is_busy

    def step(self, now: float, *, at_once: bool = False) -> None:
        """Take answers, and ask again if it is time.

        Args:
            now: monotonic seconds.
            at_once: ask however recent the last request was.
        """
        if self._client is None and now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._connect()
        client = self._client
        if client is None:
            return
        self._take_results(client)
        if self._devices.are_any_held or client.is_lost:
            client.ask(now, soon=self._devices.is_new_unseen(int(now * 1e9)), at_once=at_once)

    def _take_results(self, client: RecorderClient) -> None:
        while not client.results.empty():
            snapshot = client.results.get()
            if snapshot is not None:
                self._devices.is_read = True
                self._devices.library = snapshot.library or self._devices.library
                self._devices.note(snapshot.entries, snapshot.asked_ns, snapshot.wall_offset_ns)
            elif client.is_lost:
                self._devices.lose()

    def close(self) -> None:
        """Take the last answers, because the rank has ended."""
        self._devices.lose(is_over=True)
        if self._client is not None:
            self._take_results(self._client)

    def _connect_for_call(self) -> None:
        now = time.monotonic()
        if self._client is None and now >= self._call_look_at:
            self._call_look_at = now + _CALL_LOOK_SECONDS
            self._connect()

    def _connect(self) -> None:
        """Begin to read the recorder, if the ring names its socket."""
        path = self._meta().get(SOCKET_KEY)
        if isinstance(path, str) and path:
            self._devices.is_read = True
            self._client = RecorderClient(path, self._wake)
