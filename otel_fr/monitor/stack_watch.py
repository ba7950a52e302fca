"""Decides when the monitor takes the rank's stacks, and sends them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from otel_fr import semconv as names
from otel_fr.config import Config
from otel_fr.monitor.control.link import Link
from otel_fr.monitor.dumping import process_start_wall_ns
from otel_fr.monitor.files import Files
from otel_fr.monitor.process.ending import RankProcess
from otel_fr.monitor.process.left_loops import LOOK_SECONDS, LeftLoops
from otel_fr.monitor.process.native_stacks import Native, NativeLook
from otel_fr.monitor.process.stacks import StackRequest, Stacks
from otel_fr.monitor.process.state import Look
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.rank_report import MAX_STACK
from otel_fr.ring import RingReader
from otel_fr.stacks import parts_of

_log = logging.getLogger("otel_fr.monitor")

NATIVE_EVERY_SECONDS: Final = 30.0
"""Shortest time between two uses of py-spy, which stops the rank while it works."""

REASON_STALL = "stall"
REASON_NATIVE = "native stacks"


class StackWatch:
    """Requests stacks, one request at a time. The watch loop calls it. Only `note_end` blocks.

    Native stacks follow the Python stacks if the rank is stuck: its GIL is held, it has passed a limit, or an incident
    names it as the culprit. A rank that only waits for others is not stopped for native stacks.

    Args:
        reader: reader of the ring.
        link: the socket to the rank, if there is one.
        files: writes the file with the stacks if the rank stalls, or if the newest file shows its present fault.
    """

    def __init__(
        self,
        process: RankProcess,
        reader: RingReader,
        link: Link | None,
        config: Config,
        reporter: Reporter,
        files: Files,
    ) -> None:
        self._process = process
        self._reader = reader
        self._loops = LeftLoops(reader, process_start_wall_ns(reader.pid_start_ns) / 1e9)
        self._link = link
        self._takes_native = config.native_stacks == "auto"
        self._reporter = reporter
        self._files = files
        self._request: StackRequest | None = None
        self._look: Look | None = None
        self._thread = self._looked_at = process.pid
        self._number = 0
        self._event = self._caller = ""
        self._reasons: set[str] = set()
        """The events for which the awaited stacks were requested. ``_event`` is the last of them."""
        self._is_at_loops = False
        self._native: NativeLook | None = None
        self._native_at = float("-inf")
        self._is_culprit = False

    @property
    def is_busy(self) -> bool:
        """True while requested stacks have not arrived."""
        return self._request is not None or self._native is not None

    def ask(self, event: str, now: float) -> None:
        """Request the stacks, and send ``event`` with them once they have arrived."""
        if self._request is not None:
            # The previous event still waits for an answer. Send it with the stacks known so far.
            self._reporter.send(self._event, stacks=True)
        self._number += 1
        ident, self._caller = self._reporter.run.tail.caller
        wanted = {"cmd": "stacks", "id": self._number, "ident": ident, "name": self._caller}
        asked = self._link is not None and self._link.send(wanted)
        self._request = StackRequest(self._process, self._reader.meta, now, asked, ident)
        self._event, self._is_at_loops = event, False
        self._reasons.add(event)
        self._loops.forget()
        self._look = Look(self._process.pid, now)
        self._thread = self._looked_at = self._process.pid

    def answered(self, message: Mapping[str, Any]) -> None:
        """Handle the rank's answer."""
        if message.get("id") == self._number and self._request is not None:
            self._request.answered(str(message["stacks"]), str(message.get("site") or ""))
            self._thread = int(message.get("tid") or self._process.pid)

    def named_as_culprit(self) -> None:
        """Note that an incident names this rank as the culprit."""
        self._is_culprit = True

    def note_end(self, is_clean: bool) -> None:
        """Report the loops that the rank had left when it ended. Waits at most `LOOK_SECONDS`."""
        reporter = self._reporter
        raised, known = reporter.exception(), reporter.known_stacks()
        stack = "" if raised is None else raised.stack
        if known is not None and not stack and not is_clean:
            return  # the rank ended where the known stacks show it
        self._loops.begin(reporter.run.tail.caller[1], stack, time.monotonic(), is_over=is_clean)
        if found := self._loops.found(LOOK_SECONDS):
            reporter.remember_stacks(replace(known or Stacks(), left_loops=found))

    def step(self, now: float) -> None:
        """Handle stacks that have arrived. ``now``: monotonic seconds."""
        self._step_python(now)
        if self._loops.is_late and self._request is None:
            known, loops = self._reporter.known_stacks(), self._loops.found()
            if known is not None:
                self._reporter.remember_stacks(replace(known, left_loops=loops))
        if self._is_culprit and self._request is None:
            self._is_culprit = False
            known = self._reporter.known_stacks()
            if known is not None and not parts_of(known.text)[1]:
                self._look_at_native(now)
        self._step_native(now)

    def _step_python(self, now: float) -> None:
        if self._request is None or self._look is None:
            return
        self._request.step(now)
        if self._thread != self._looked_at:  # the rank is in another thread than the main thread
            self._look = Look(self._process.pid, now, self._thread)
            self._looked_at = self._thread
        if self._request.result is None:
            return
        if not self._is_at_loops and self._request.result.text:
            self._is_at_loops = True
            self._loops.begin(self._caller, self._request.result.text, now)
        if not self._look.is_over(now) or not self._loops.is_over(now):
            return
        loops, look = self._loops.found() if self._is_at_loops else (), self._look
        found = replace(self._request.result, doing=look.text or "", connections=look.connections, left_loops=loops)
        reasons, self._reasons, self._is_at_loops = self._reasons, set(), False
        self._reporter.remember_stacks(found)
        self._request = None
        self._reporter.send(self._event, stacks=True)
        if names.EVENT_STALLED in reasons or self._files.shows_present_fault():  # the new file has these stacks
            self._files.write(REASON_STALL, of_fault=True)
        known = self._reporter.known_stacks()
        if known is not None and (known.python_blocked or names.EVENT_OVERDUE in reasons):
            self._look_at_native(now)

    def _look_at_native(self, now: float) -> None:
        """Begin to take native stacks, unless this is impossible or was done less than `NATIVE_EVERY_SECONDS` ago."""
        if not self._takes_native or self._native is not None or now - self._native_at < NATIVE_EVERY_SECONDS:
            return
        if self._reporter.clean_so_far or not self._process.alive():
            return
        self._native_at = now
        self._native = NativeLook(self._process.pid, self._reporter.run.tail.caller[1])

    def _step_native(self, now: float) -> None:
        is_late = now - self._native_at >= NATIVE_EVERY_SECONDS  # in the kernel, py-spy may wait where nothing ends it
        if self._native is None or (self._native.result is None and not is_late):
            return
        found, self._native = self._native.result or Native(error="no answer in time"), None
        if found.error:
            _log.debug("no native stacks: %s", found.error)
        if self._add(found):
            self._reporter.send(self._event, stacks=True)
            self._files.write(REASON_NATIVE, of_fault=True)

    def _add(self, found: Native) -> bool:
        """Add native stacks to the known stacks. Return False if there are none, or the rank has moved since."""
        known = self._reporter.known_stacks()
        if known is None or not found.text:
            return False
        python = parts_of(known.text)[0].rstrip()[: MAX_STACK - len(found.text) - 2]
        text = "\n\n".join(part for part in (python, found.text) if part)
        self._reporter.remember_stacks(replace(known, text=text))
        return True
