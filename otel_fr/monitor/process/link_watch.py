"""Finds hosts to which a rank's packets take long. The kernel knows the round-trip time of each TCP connection."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from otel_fr.monitor.process.connections import NO_CONNECTIONS, RECENT_SECONDS, connections_of, slow_round_trips
from otel_fr.monitor.process.stacks import Stacks
from otel_fr.monitor.process.state import Process
from otel_fr.monitor.process.tcp_sockets import read_sockets
from otel_fr.rank_report import ReportedRoundTrip

EVERY_SECONDS: Final = RECENT_SECONDS
"""Time between two looks. It is so long that two looks do not see the same use of a connection."""
LOOKS: Final = 3
"""A round trip must be slow in this many successive looks: a link that a checkpoint fills for seconds is not slow."""
MOST_SHARE: Final = 0.001
"""Largest share of a CPU that looks take, however many sockets the machine has."""


class LinkWatch:
    """Looks every `EVERY_SECONDS`, in its own thread, because the kernel may be slow to answer.

    Attributes:
        slow: by peer's address: seconds of a round trip that was slow in the last `LOOKS` looks.
    """

    def __init__(self, pid: int, local_rank: int) -> None:
        self._pid = pid
        self._is_speaker = local_rank == 0
        self._own: tuple[str, ...] = ()
        self._in_a_row: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._cost = 0.0
        # Spread the looks of the ranks of a machine.
        first = EVERY_SECONDS * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the looks
        self._look_at = time.monotonic() + first
        self.slow: Mapping[str, float] = {}

    def step(self, now: float, far: int) -> None:
        """Begin a look if it is time.

        Args:
            now: monotonic seconds.
            far: how many ranks may be on other machines. If there are none, connections are not examined.
        """
        if far > 0 and now >= self._look_at and (self._thread is None or not self._thread.is_alive()):
            self._look_at = now + max(EVERY_SECONDS, self._cost / MOST_SHARE)
            self._thread = threading.Thread(target=self._look, name="otel-fr-links", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        began = time.thread_time()
        with contextlib.suppress(Exception):  # whatever a kernel says must not end in a traceback
            inodes = Process(self._pid).socket_inodes()
            sockets = read_sockets()
            self.take(connections_of(sockets, inodes).addresses, slow_round_trips(sockets, inodes))
        self._cost = time.thread_time() - began

    def take(self, own: tuple[str, ...], slow: Mapping[str, float]) -> None:
        """Take the result of a look: own addresses, and seconds of slow round trips by peer's address."""
        self._own = own
        self._in_a_row = {peer: self._in_a_row.get(peer, 0) + 1 for peer in slow if peer not in own}
        self.slow = {peer: slow[peer] for peer, count in self._in_a_row.items() if count >= LOOKS}

    def reported(self, known: Stacks | None) -> dict[str, Any]:
        """Return the fields of a report that describe the rank's connections.

        They contain the rank's addresses only if it stands still, if it has slow round trips, or if it is local rank 0.

        Args:
            known: the rank's stacks, if they were taken since it last moved.
        """
        then = NO_CONNECTIONS if known is None else known.connections
        slow = self.slow
        return {
            "addresses": then.addresses or (self._own if self._is_speaker or slow else ()),
            "unreached": then.unreached,
            "round_trips": tuple([ReportedRoundTrip(peer, round(seconds, 3)) for peer, seconds in slow.items()]),
        }
