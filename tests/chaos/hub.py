"""The collector of all jobs. Cases kill and restart it, and `Hub` watches its health."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.collector_process import Collector, start
from tests.support.commands import OTEL_FR
from tests.support.health import HealthWatch
from tests.support.ports import free_address


class Hub:
    """Use it in a ``with`` block. Each start has the same addresses and data.

    Attributes:
        starts: how often it was started.
        resident: peak memory of its processes, in bytes.
        slowest: longest answer of /healthz in seconds, without the time that other programs had the processors.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.grpc, self.http = free_address(), free_address()
        self.starts = 0
        self.resident = 0
        self.slowest = 0.0
        # Other programs could take or leave a default port between two starts, and so change the number of sockets.
        self._options = ("--grpc", self.grpc, "--http", self.http, "--otlp-http", free_address(), *options)
        self._open = contextlib.ExitStack()
        self._watch: HealthWatch | None = None
        self.collector: Collector

    def __enter__(self) -> Hub:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.look_away()
        self._open.close()

    def begin(self) -> None:
        self.collector = self._open.enter_context(start(self.folder, self.starts, *self._options, program=OTEL_FR))
        self.starts += 1
        self.look()

    def look(self) -> None:
        """Ask for the collector's health until `look_away`."""
        self._watch = self._open.enter_context(HealthWatch(self.collector).running())

    def look_away(self) -> None:
        """Stop asking, for a fault that stops the collector from outside."""
        if self._watch is not None:
            self._watch.end()
            self.slowest = max(self.slowest, self._watch.slowest)
            self._watch = None
        if self.collector.process.poll() is None:
            self.resident = max(self.resident, self.collector.resident())

    def kill(self) -> None:
        """Kill the collector, as the kernel does when memory is short."""
        self.look_away()
        self.collector.kill()

    def files(self) -> list[str]:
        """Return the files and sockets that the process has open."""
        folder = Path(f"/proc/{self.collector.process.pid}/fd")
        found = []
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.append(os.readlink(entry))
        return found

    def sockets(self) -> int:
        return sum(name.startswith("socket:") for name in self.files())

    def incidents(self, job: str) -> list[dict[str, Any]]:
        """Return the last state of each incident of a job, over all starts."""
        last: dict[str, dict[str, Any]] = {}
        for number in range(self.starts):
            file = self.folder / f"start-{number}" / "incidents.jsonl"
            # A kill may cut the last line.
            for line in file.read_text().splitlines() if file.exists() else []:
                with contextlib.suppress(ValueError):
                    incident = json.loads(line)
                    if incident["job"] == job:
                        last[incident["id"]] = incident
        return list(last.values())

    def trouble(self) -> str:
        """Return the first traceback in a log of the processes."""
        for log in sorted(self.folder.glob("start-*/err.txt")):
            text = log.read_text(errors="replace")
            at = text.find("Traceback")
            if at >= 0:
                return text[max(0, at - 200) : at + 2_000]
        return ""
