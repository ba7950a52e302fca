"""A real collector, run as a process."""

from __future__ import annotations

import contextlib
import re
import signal
import ssl
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from tests.support import warm
from tests.support.collector_view import Answer, CollectorView
from tests.support.commands import OTEL_FR
from tests.support.grpc_calls import stream, unary
from tests.support.json_lines import json_lines
from tests.support.times import RealTime
from tests.support.waiting import PATIENCE, wait_for

PROTOBUF = "application/x-protobuf"


class Collector(CollectorView):
    """A running collector process, and its output.

    Args:
        tls: how its HTTP clients verify its certificate.
        program: the beginning of its command line.

    Attributes:
        authorization: the ``Authorization`` header of requests for pages; empty: none.
    """

    authorization = ""

    def __init__(
        self, folder: Path, *options: str, tls: ssl.SSLContext | None = None, program: Sequence[str] = OTEL_FR
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.time = RealTime()
        self.tls = tls
        self.incidents_file = folder / "incidents.jsonl"
        self.out_file, self.err_file = folder / "out.txt", folder / "err.txt"
        command = [*program, "collector", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        command += ["--alert-after", "0", "--incidents", str(self.incidents_file), *options]
        with self.out_file.open("wb") as out, self.err_file.open("wb") as err:
            self.process = warm.service(command, stdout=out, stderr=err)
        found = wait_for(self._addresses)
        assert found, self.err_file.read_text()
        assert isinstance(found, re.Match), f"it ended: {self.err_file.read_text()}"
        self.grpc, self.http = found.groups()
        other = re.search(r"OTLP/HTTP on (\S+);", self.err_file.read_text())
        self.otlp_http = other[1] if other else ""
        self.channel = grpc.insecure_channel(self.grpc)

    def _addresses(self) -> re.Match[str] | bool | None:
        """Return the addresses at which the process listens; True: it has ended."""
        is_over = self.process.poll() is not None
        return re.search(r"gRPC on (\S+), HTTP on (\S+)", self.err_file.read_text(errors="replace")) or is_over

    def unary(self, method: str) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
        return unary(self.channel, method)

    def stream(self, method: str) -> grpc.UnaryStreamMultiCallable[bytes, bytes]:
        return stream(self.channel, method)

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        # A collector that has ended never becomes ready, so the call does not wait for it.
        given = {"timeout": PATIENCE, "wait_for_ready": self.process.poll() is None, **options}
        return self.unary(method)(data, **given)

    def post(self, path: str, body: bytes, kind: str = PROTOBUF, **headers: str) -> Answer:
        url = path if "://" in path else self.otlp_http + path
        given = {"Content-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self._open(urllib.request.Request(url, body, given))

    def fetch(self, path: str, **headers: str) -> Answer:
        given = {"Authorization": self.authorization} if self.authorization else {}
        return self._open(urllib.request.Request(self.http + path, headers={**given, **headers}))

    def _open(self, request: urllib.request.Request) -> Answer:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=self.tls) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, dict(error.headers), error.read())

    def lines(self) -> list[dict[str, Any]]:
        return json_lines(self.incidents_file)

    def said(self) -> str:
        return self.err_file.read_text()

    def resident(self) -> int:
        """Return the process's peak resident memory, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None, status
        return int(found[1]) * 1024

    def kill(self) -> None:
        """Kill the process, like an out-of-memory kill or a power cut: nothing is sent or saved at the end."""
        self.channel.close()
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGINT) -> int:
        """Stop the process and return its exit status."""
        self.channel.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def patched(**values: float) -> tuple[str, ...]:
    """Return the beginning of a collector's command line with other constants: ``package__module__NAME=value``.

    It shortens times that a test would only wait for.
    """
    lines = ["import sys", "from otel_fr.cli import main"]
    for name, value in values.items():
        module, _, constant = name.replace("__", ".").rpartition(".")
        lines += [f"import otel_fr_collector.{module} as module", f"module.{constant} = {value}"]
    return sys.executable, "-c", "\n".join([*lines, "sys.exit(main())"])


STORED_FIRST = {"timeline__PUBLISH_PATIENCE": PATIENCE}
"""For `patched`: the collector publishes only after the data is on disk or the disk has failed, however slow the disk.
So published data survives a kill."""


@contextlib.contextmanager
def running(
    folder: Path, *options: str, tls: ssl.SSLContext | None = None, program: Sequence[str] = OTEL_FR
) -> Iterator[Collector]:
    collector = Collector(folder, *options, tls=tls, program=program)
    try:
        yield collector
    finally:
        collector.channel.close()
        if collector.process.poll() is None:
            collector.process.kill()
            collector.process.wait()


def start(
    folder: Path, number: int, *options: str, program: Sequence[str] = ()
) -> contextlib.AbstractContextManager[Collector]:
    """Start a collector for the ``number``-th time. All starts share the data folder.

    Args:
        program: as in `running`; empty: a collector patched with `STORED_FIRST`.
    """
    data = ("--data", str(folder / "data"))
    return running(folder / f"start-{number}", *data, *options, program=program or patched(**STORED_FIRST))
