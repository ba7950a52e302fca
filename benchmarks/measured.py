"""Code that benchmarks share: measurements of a process, an OTLP receiver that does nothing, a ring's definitions."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from otel_fr.ring import SignatureDef, SiteDef

SINK = Path(__file__).with_name("sink.py")
SITES = [SiteDef((("/home/user/train.py", line, "step"), ("/home/user/run.py", 1, "main"))) for line in range(10)]
"""Call sites for a ring's records."""


def signature(shape: int) -> SignatureDef:
    """Return the signature of an all_reduce on NCCL."""
    sizes, kinds, size = ((1024, shape + 1),), ("BFloat16",), 2048 * (shape + 1)
    return SignatureDef(
        "all_reduce", "nccl", sizes, sizes, kinds, kinds, "sum", None, None, None, None, None, size, size
    )


SIGNATURES = [signature(shape) for shape in range(40)]


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds so far of all threads of a process, and of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, key: str, file: str = "status") -> float:
    """Return MiB from a line of ``/proc/PID/status``, such as VmRSS or VmHWM (the peak), or of another file there."""
    found = re.search(rf"^{key}:\s+(\d+)", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


WATCH_SECONDS = 0.2
"""Seconds between two measurements of the memory of a server and its children."""


class Server:
    """A receiving process. It prints its addresses on stderr."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        errors = folder / f"err-{time.monotonic_ns()}.txt"
        with errors.open("wb") as err:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err)
        end = time.monotonic() + 30
        while not (found := re.search(r"gRPC on ([\w.:]+),(?: HTTP on (\S+))?", errors.read_text())):
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(errors.read_text())
            time.sleep(0.02)
        self.address, self.http = found.groups()
        self._highest = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Note the memory of the process, together with memory that its children do not share with it."""
        pid = self.process.pid
        with contextlib.suppress(OSError):  # the process has ended
            while True:
                total = memory_mb(pid, "VmRSS")
                for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                    with contextlib.suppress(OSError):
                        total += memory_mb(int(child), "Private_Dirty", "smaps_rollup")
                self._highest = max(self._highest, total)
                time.sleep(WATCH_SECONDS)

    def cpu(self) -> float:
        return cpu_seconds(self.process.pid)

    def memory(self) -> float:
        """Return the peak of resident MiB, with the children's."""
        return max(self._highest, memory_mb(self.process.pid, "VmHWM"))

    def metric(self, name: str, **labels: str) -> float:
        from prometheus_client.parser import text_string_to_metric_families

        with urllib.request.urlopen(self.http + "/metrics", timeout=30) as answer:
            text = answer.read().decode()
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def collector(folder: Path, *options: str, address: str = "127.0.0.1:0") -> Server:
    command = [sys.executable, "-m", "otel_fr.cli", "collector", "--grpc", address, "--http", "127.0.0.1:0"]
    return Server(folder, [*command, "--incidents", str(folder / "incidents.jsonl"), *options])


def sink(folder: Path, protocol: str = "grpc") -> Server:
    """Start a receiver that does nothing. ``protocol``: as in ``OTEL_EXPORTER_OTLP_PROTOCOL``."""
    return Server(folder, [sys.executable, str(SINK), protocol])
