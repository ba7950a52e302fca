"""Prints the verdict in the job's own output, from one monitor of each machine, when the job hangs or has failed.

The monitor runs ``otel-fr analyze`` in a separate process on the flight-recorder files of this machine's ranks. If
these are not all of the run's ranks, the collector's findings take precedence, because it knows all machines.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from otel_fr.config import Config
from otel_fr.helper_process import python_command
from otel_fr.monitor.control.node import Node
from otel_fr.monitor.control.stderr import Stderr
from otel_fr.presentation import count_text, ranks_text
from otel_fr.printable import one_line

PATIENCE = 4.0
"""A hang is logged after this many stall times. A wait for a checkpoint, for example, is over by then."""
SETTLED_SECONDS = 2.0
"""How long an incident's text must stay unchanged before it is logged. The time doubles each time it was logged."""
CORRECTION_SECONDS = 8.0
"""How long the collector may correct the verdict at the end. By then it knows which machines are silent. The job has
ended, and is not delayed."""
ASK_SECONDS = 60.0
"""Shortest time between two analyses of a hang on one machine."""
FILES_SECONDS = 1.5
"""How long the other monitors have to write their files before the analysis begins."""
ANALYSIS_SECONDS = 20.0
"""Longest analysis."""
MAX_SAID = 20
"""Most lines that are logged for the collector about one run on one machine, however much it sends."""
MAX_OUTPUT = 1 << 20
MAX_LINE = 1_500
"""Most characters of a verdict's line. The files have the full text."""

_log = logging.getLogger("otel_fr.monitor")


@dataclass(frozen=True, slots=True)
class Told:
    """An incident as the collector describes it. ``page``: its URL; "": unknown."""

    id: str
    summary: str
    page: str

    @property
    def where(self) -> str:
        """How to view the incident: its page, or a command if only the collector's own machine can reach the page."""
        with contextlib.suppress(ValueError):
            parts = urlsplit(self.page)
            host = parts.hostname or ""
            if parts.scheme in ("http", "https") and host not in ("", "localhost", "::1") and host[:4] != "127.":
                return one_line(self.page)
        return f"otel-fr incidents show {one_line(self.id)}"


class Analysis:
    """Runs ``otel-fr analyze`` with these arguments in a separate process. Never raises."""

    def __init__(self, arguments: Sequence[str], seconds: float) -> None:
        command = [*python_command("otel_fr.analyze.brief"), *arguments]
        self._deadline = time.monotonic() + seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        with contextlib.suppress(OSError):
            # No pipe: nobody reads while the process runs.
            self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed by `result`
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.DEVNULL
            )

    def is_over(self) -> bool:
        """Return True once there is a result or the time is over. The process has ended then."""
        if self._process is None or self._process.poll() is not None:
            return True
        if time.monotonic() < self._deadline:
            return False
        self.end()
        return True

    def end(self) -> None:
        """End the process, if it still runs. Its result is then nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def result(self) -> Mapping[str, Any]:
        """Return what `otel_fr.analyze.brief` has printed, or nothing if it has failed. Call this after `is_over`."""
        process, self._process = self._process, None
        if self._output is None:
            return {}
        with self._output as output:
            try:
                output.seek(0)
                found = json.loads(output.read(MAX_OUTPUT)) if process is not None and process.returncode == 0 else {}
            except (OSError, ValueError):
                found = {}
        return found if isinstance(found, dict) else {}


class Verdict:
    """Prints the verdict for one monitor, unless another monitor of the run on this machine prints it.

    Args:
        world_size: number of the run's ranks.

    Attributes:
        node: this machine's monitors of the rank's present run.
    """

    def __init__(self, node: Node, config: Config, world_size: int) -> None:
        self.node = self._before = node
        self._config = config
        self._world_size = world_size
        self._incidents: dict[str, Told] = {}
        """The open incidents by id, the oldest first."""
        self._unsaid: dict[str, float] = {}
        """By id: since when an incident has a text that was not logged yet (monotonic)."""
        self._times_said: Counter[str] = Counter()
        self._places = 0
        self._hang_ns: int | None = None
        self._has_said_hang = self._has_ended = False
        self._ask_at = self._ready_at = 0.0
        self._analysis: Analysis | None = None
        self._file = Path()

    def follow(self, node: Node, world_size: int) -> None:
        """Follow the rank into another run, whose monitors ``node`` has joined."""
        self.leave(patient=False)
        self._before, self.node, self._world_size = self.node, node, world_size
        if self._analysis is not None:  # it reads files of the run that the rank has left
            self._analysis.end()
            self._analysis = None
        for known in (self._incidents, self._unsaid, self._times_said):
            known.clear()
        self._hang_ns, self._has_said_hang, self._places, self._ready_at = None, False, 0, 0.0

    # ---- while the job runs

    @property
    def _told(self) -> Told | None:
        """The oldest open incident, or None."""
        return next(iter(self._incidents.values()), None)

    def note_incident(self, number: str, summary: str, page: str = "", *, is_over: bool = False) -> None:
        """Note the text of an incident. Once it has settled, the first monitor here logs it.

        The end of a logged incident (``is_over``) is also logged, unless ``summary`` is "": the incident was then no
        cause.
        """
        told = Told(number, summary, page)
        if is_over:
            self._unsaid.pop(number, None)
            is_known = self._incidents.pop(number, None) is not None
            is_news = is_known and bool(summary) and self._times_said[number] > 0 and not self._has_ended
            if is_news and self.node.is_first(f"over {number}"):
                self.log("the incident is over; while it fired: %s (%s)", summary, told.where)
        elif self._incidents.get(number) != told:
            self._incidents[number] = told
            self._unsaid[number] = time.monotonic()

    def _say_incidents(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        for number, since in list(self._unsaid.items()):
            if at_once or now - since >= SETTLED_SECONDS * 2 ** self._times_said[number]:
                del self._unsaid[number]
                self._times_said[number] += 1
                self._say_incident(self._incidents[number])

    def _say_incident(self, told: Told) -> None:
        if self._places < MAX_SAID and self.node.is_first(f"incident {told.id}: {told.summary}"):
            is_new = self.node.is_first(f"incident {told.id}")
            begin = "the collector has opened an incident" if is_new else "update from the collector"
            self.log(f"{begin}: %s (%s)", told.summary, told.where)

    def log(self, text: str, *values: object) -> None:
        """Log news of the collector, as one of the `MAX_SAID` lines that the monitors here share."""
        while self._places < MAX_SAID:
            self._places += 1
            if self.node.is_first(f"place {self._places}"):
                more = "" if self._places < MAX_SAID else "; further changes are not logged"
                _log.warning(text + more, *values)
                return

    def step(self, stalled_ns: int | None, now_ns: int, file: str) -> None:
        """Log incidents that have settled, and a hang that no collector has reported.

        Args:
            stalled_ns: since when the rank waits (monotonic); None: it does not wait.
            now_ns: monotonic.
            file: the rank's flight-recorder file, or "".
        """
        self._say_incidents()
        if self._has_said_hang and stalled_ns is None:
            self._has_said_hang = False
            _log.warning("the wait is over")  # the job may still not continue: the call may have failed
        if self._analysis is not None:
            self._step_analysis()
        elif stalled_ns is None or self._told is not None or not file:
            self._hang_ns, self._ready_at = None, 0.0
        elif self._hang_ns is None:
            is_long = now_ns - stalled_ns >= PATIENCE * self._config.stall_seconds * 1e9
            if is_long and time.monotonic() >= self._ask_at:
                self._hang_ns = stalled_ns
                self._ask(file)
        elif self._ready_at and time.monotonic() >= self._ready_at:
            self._ready_at = 0.0
            self._analysis = Analysis(self._arguments(self._file), ANALYSIS_SECONDS)

    def _ask(self, file: str) -> None:
        if not self.node.is_first(f"hang {int(time.time() / ASK_SECONDS)}"):
            return
        # The rank for which the others wait has not stalled, so it has no file. It may still be in the previous run.
        for pid in {*self.node.others(), *self._before.others()}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGUSR1)
        self._file = Path(file)
        self._ready_at = time.monotonic() + FILES_SECONDS

    def _step_analysis(self) -> None:
        if self._analysis is None or not self._analysis.is_over():
            return
        found, self._analysis = self._analysis.result(), None
        causes = _causes(found)
        if causes and all(one.get("excused") is True for one in causes):
            self._hang_ns, self._ask_at = None, time.monotonic() + ASK_SECONDS
        elif causes and self._told is None and self.node.is_first(f"incident {causes[0].get('id')}"):
            self._has_said_hang = True
            for line in self._lines("this job hangs", found, self._file):
                _log.warning("%s", line)

    # ---- at the end

    def follow_others(self) -> None:
        """Follow others into a newer run that lacks this ended rank, and so fails for the same reason. A monitor there
        logs the failure, because the collector reports it there. This monitor logs it only if none is left."""
        if (found := self.node.next()) is not None:
            self.follow(*found)

    def last_words(self, error: Stderr, poll: Callable[[], bool]) -> None:
        """Print why the run failed, if it did, and if no other monitor here can print it later.

        The monitor of a rank that ended cleanly does not wait: if another rank fails later, that rank's monitor prints
        it. Blocks at most until ``error`` is closed, and calls ``poll`` meanwhile. ``poll`` returns False once the
        collector can send nothing more.
        """
        self._has_ended = True
        if self.node.fall_silent():
            failures = self.node.failures()
            files = [file for file, _ in failures.values() if file]
            if not failures:
                self._say_incidents(at_once=True)
            all_stopped = all(stopped for _, stopped in failures.values())
            if files and self.node.is_first("end"):
                self._say(Path(files[0]), all_stopped, error, poll)
            elif not all_stopped and self.node.is_first("end"):
                self._say_told(error, poll)
        error.close()

    def leave(self, *, patient: bool = True) -> None:
        """Leave the run. Nothing is printed after this. ``patient``: see `Node.leave`."""
        node = self.node
        # If the folder were removed, a monitor that has not come yet would print again why the run failed.
        if node.leave(patient=patient) and (node.is_complete or not node.failures()):
            node.remove()

    def _say(self, file: Path, all_stopped: bool, error: Stderr, poll: Callable[[], bool]) -> None:
        """Print the verdict, unless the ranks ended because nodes join the job (`Config.nodes_changed`)."""
        end = time.monotonic() + FILES_SECONDS  # a rank that this run lacks may end just now, in the previous run
        while self._before is not self.node and self._before.others() and time.monotonic() < end:
            poll()
            time.sleep(0.02)
        analysis = Analysis(self._arguments(file), min(ANALYSIS_SECONDS, error.left()))
        while not analysis.is_over():
            poll()
            time.sleep(0.02)
        found = analysis.result()
        if self._config.nodes_changed and Path(self._config.nodes_changed).exists():
            return
        # All ranks were stopped from outside, and none waited for another: somebody has ended the job.
        if all_stopped and self._told is None and all(one.get("category") == "rank_dead" for one in _causes(found)):
            return
        lines = list(self._lines("verdict", found, file))
        for line in lines:
            error.write(f"otel-fr: {line}")
        said, end = lines[0], time.monotonic() + CORRECTION_SECONDS
        while not self._is_complete(found) and poll() and time.monotonic() < end and error.left() > 0:
            time.sleep(0.02)
            told = self._told
            if told is None or time.monotonic() - self._unsaid.get(told.id, end) < SETTLED_SECONDS:
                continue
            text = _cut(one_line(told.summary))
            if text not in said:
                said = text
                error.write(f"otel-fr: verdict, corrected by the collector: {text}")

    def _say_told(self, error: Stderr, poll: Callable[[], bool]) -> None:
        """Print the collector's verdict, because no file could be written here."""
        end = time.monotonic() + CORRECTION_SECONDS
        while self._told is None and poll() and time.monotonic() < end and error.left() > 0:
            time.sleep(0.02)
        if self._told is not None:
            error.write(f"otel-fr: verdict: {_cut(one_line(self._told.summary))} ({self._told.where})")

    def _is_complete(self, found: Mapping[str, Any]) -> bool:
        """Return True if there were files of all ranks."""
        return len(_ranks(found)) >= self._world_size

    # ---- text

    def _lines(self, title: str, found: Mapping[str, Any], file: Path) -> Iterator[str]:
        causes, ranks, is_all = _causes(found), _ranks(found), self._is_complete(found)
        told = self._told
        if causes and (is_all or told is None):
            first, more = causes[0], len(causes) - 1
            text = f"{first.get('category')}: {first.get('summary')}"
            text += f" (and {count_text(more, 'more fault')})" if more else ""
        elif told is not None:
            text = told.summary
        elif not found:
            text = "could not analyse the files of this machine's ranks"
        else:
            text = "no fault shows in the files of this machine's ranks"
        yield f"{title}: {_cut(one_line(text))}"
        whose = f"files of {ranks_text(ranks)}" + ("" if is_all else f" of {self._world_size}") if ranks else "files"
        live = "" if told is None else f"; live: {told.where}"
        command = shlex.join(["otel-fr", "analyze", *self._arguments(file)])
        yield f"{whose}; to read them: {one_line(command)}{live}"

    def _arguments(self, file: Path) -> list[str]:
        """Return the arguments with which ``otel-fr analyze`` reads this machine's files, but not PyTorch's own."""
        given = Path(self._config.dump_prefix or "/")
        if self._config.dump_whole_name or given.parent != file.parent:
            return [str(file.parent)]
        name = given.name
        return [str(file.parent), "--prefix", name if file.name.startswith(name) else f"otel_fr_{name}"]


def _ranks(found: Mapping[str, Any]) -> list[int]:
    return [rank for rank in found.get("ranks", ()) if isinstance(rank, int)]


def _causes(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    causes = found.get("causes")
    return [one for one in causes if isinstance(one, dict)] if isinstance(causes, list) else []


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 3].rstrip() + "..."
