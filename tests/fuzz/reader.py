"""A process that reads files, with limits. For each path on standard input it prints the memory, and what went wrong.

``python -m tests.fuzz.reader BYTES`` limits the address space, so the process ends if it asks for too much memory.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import re
import resource
import subprocess
import sys
import time
import traceback
from pathlib import Path

from otel_fr.analyze.analysis import load
from otel_fr.analyze.output.database import write_database
from otel_fr.analyze.output.entries_table import entries_text
from otel_fr.analyze.output.markdown import to_markdown
from otel_fr.analyze.output.otlp_traces import span_batches
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.page import to_html
from otel_fr.analyze.output.text import to_json, to_text
from otel_fr.ring import RingFormatError, RingReader
from tests.support.paths import ROOT

LIMIT = 2 << 30
"""Bytes of address space: five times the need of the largest valid file."""


def read(path: Path) -> None:
    """Read a file and write all outputs, like the analyzer; read a ring also like the monitor."""
    if path.suffix == ".ring":
        with contextlib.suppress(RingFormatError), RingReader.open(path) as reader:
            for record in reader.records():
                reader.ended(record.record_id)
            for row in reader.groups():
                repr(row)
            activity = reader.activity
            if activity is not None:
                repr((activity.open_sections(), activity.step(), activity.beats(), activity.ended(0)))
            repr((reader.meta, reader.exception, reader.state, reader.counters, reader.head, reader.torn))
    analysis = load(path)
    view = View(verbose=True, stacks=True)
    entries = entries_text(analysis, view)
    for text in (
        to_text(analysis, view),
        to_markdown(analysis, view),
        to_html(analysis, view),
        to_json(analysis),
        entries,
    ):
        text.encode(errors="backslashreplace")
    if analysis.run is not None and path.stat().st_size % 10 == 0:  # not always: these files are synced to the disk
        for name in ("calls.json", "calls.sqlite", "calls"):
            write_database(analysis, path.with_name(name))
    for batch in span_batches(analysis):
        for one in batch:
            one.SerializeToString()


class Reader:
    """Runs the reading process, and starts it again when it has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: io.BufferedWriter | None = None

    def read(self, path: Path, seconds: float) -> tuple[str, float, int]:
        """Have one file read.

        Returns:
            what went wrong ("": nothing), the seconds, and the bytes of memory.
        """
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        begun = time.monotonic()
        timer = _Kill(process, seconds)
        with contextlib.suppress(BrokenPipeError), timer:
            process.stdin.write(f"{path}\n".encode())
            process.stdin.flush()
            line = process.stdout.readline().decode()
        took = time.monotonic() - begun
        if not line:
            self.close()
            why = f"took more than {seconds:.0f} s" if timer.fired else "the reader ended"
            return f"{why}\n{(self._folder / 'reader.txt').read_text(errors='replace')[-3_000:]}", took, 0
        size, _, wrong = line.rstrip("\n").partition(" ")
        return wrong.replace("\\n", "\n"), took, int(size)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._errors is not None:
            self._errors.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._errors = (self._folder / "reader.txt").open("wb")
            command = [sys.executable, "-m", "tests.fuzz.reader", str(LIMIT)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=ROOT
            )
            assert self._process.stdout is not None
            self._process.stdout.readline()  # it has started
        return self._process


class _Kill(contextlib.AbstractContextManager["_Kill"]):
    """Kills a process after so many seconds."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        import threading

        self.fired = False
        self._process = process
        self._timer = threading.Timer(seconds, self._fire)

    def _fire(self) -> None:
        self.fired = True
        self._process.kill()

    def __enter__(self) -> _Kill:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def _peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    faulthandler.enable()
    print("ready", flush=True)
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
        before = _peak()
        wrong = ""
        try:
            read(Path(line.rstrip("\n")))
        except BaseException:  # noqa: BLE001  any exception that leaves the reader is a finding
            wrong = traceback.format_exc(limit=-8).replace("\n", "\\n")
        print(max(0, _peak() - before), wrong, flush=True)


if __name__ == "__main__":
    main()
