"""Flight-recorder files: their names, their contents beyond the ring, and the thread that writes them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickletools
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from otel_fr import rank_report
from otel_fr.config import Config
from otel_fr.dumps.contents import FIRST
from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.dumps.places import runs_folder
from otel_fr.dumps.write import DumpContents, TakenError, is_ours, write_dump
from otel_fr.monitor.control.node import short_name
from otel_fr.monitor.control.pace import Pace
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.ring import RingFormatError, RingReader

Format = Literal["pickle", "json"]

MIN_SECONDS = 1.0
"""Shortest time between two files, except for urgent ones."""
PATIENT_SHARE, PATIENT_SECONDS = 0.01, 3.0
"""Largest share of a processor that files for patient requests take in the long run, and CPU seconds at once. A program
may catch a failed call every second, for as long as it runs, and a file takes up to a second."""
SESSION = "session"
"""Key in the ring's meta and in each file: number of earlier runs of the process."""

_OF_TORCHFT = re.compile(r"_quorum_-?\d+/\d+$")
"""What torchft's ``Manager`` appends to TORCH_FR_DUMP_TEMP_FILE in the environment of its process."""
_NOT_WRITTEN_BY_PYTORCH = frozenset({"gloo", "fake", "mpi", "ucc"})
"""Backends for which PyTorch 2.13 writes no flight-recorder file (TORCH_FR_DUMP_TEMP_FILE)."""
_HEAD_BYTES = 4096
_MAX_FOLDER = 200
"""Most bytes of a job's name in the name of a folder. File systems allow 255 (NAME_MAX)."""
_JSON_SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"|\d{1,20}')
_PICKLED_SCALARS = frozenset({"BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"})


def torch_may_write(backends: Iterable[str]) -> bool:
    """Return True if PyTorch itself writes a flight-recorder file for a group with one of these backends.

    Each text is one backend such as ``"gloo"``, or one for each device type: ``"cpu:gloo,cuda:nccl"``.
    """
    parts = {part.rpartition(":")[2].strip().lower() for text in backends for part in text.split(",")}
    return bool(parts - _NOT_WRITTEN_BY_PYTORCH - {""})


def default_folder(identity: RankIdentity, env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder ``$XDG_CACHE_HOME/otel-fr/JOB`` or ``~/.cache/otel-fr/JOB``."""
    job = re.sub(r"[^\w.@+-]", "_", identity.job_id or identity.nonce or identity.run_id).lstrip(".")
    if len(name := job.encode()) > _MAX_FOLDER:
        job = f"{name[:_MAX_FOLDER].decode(errors='ignore')}-{short_name(job)}"
    return runs_folder(env) / (job or "job")


def paths(
    config: Config, identity: RankIdentity, backends: Iterable[str], number: int = 1
) -> list[tuple[Path, Format]]:
    """Return the files to write, named as in docs/reference/environment.md, but no file that PyTorch itself writes."""
    base = _base_path(config, identity, backends, "" if number == 1 else f"process_{number}_")
    files: list[tuple[Path, Format]] = []
    if config.dump_format in ("pickle", "both"):
        # PyTorch's analyzer takes each name that ends with a number.
        files.append((base if number == 1 else base.with_name(base.name + ".pickle"), "pickle"))
    if config.dump_format in ("json", "both"):
        files.append((base.with_name(base.name + ".json"), "json"))
    return files


def _base_path(config: Config, identity: RankIdentity, backends: Iterable[str], process: str) -> Path:
    # In torchft's next quorum, another process may have this rank.
    of_quorum = "" if identity.quorum is None else f"quorum_{identity.quorum}_"
    part = of_quorum + process
    if config.dump_dir is not None:
        return config.dump_dir / f"otel_fr_{part}rank_{identity.rank}"
    if config.dump_prefix is None:
        return default_folder(identity) / f"otel_fr_{part}rank_{identity.rank}"
    given = _OF_TORCHFT.sub("_", config.dump_prefix) if of_quorum else config.dump_prefix
    whole = config.dump_whole_name and not process
    named = Path(config.dump_prefix if whole else f"{given}{part}{identity.rank}")
    foreign = os.path.lexists(named) and not is_ours(named)
    if not foreign and not torch_may_write(backends):
        return named
    # A whole name may lack the rank; without it, ranks would overwrite each other's files.
    prefix = Path(given)
    return prefix.parent / f"otel_fr_{prefix.name}{part}{identity.rank}"


def writer_of(path: Path) -> dict[str, Any]:
    """Return some or all of the keys `FIRST`: what the file says about its writer. Runs no code from the file."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return {}
    values: list[Any] = []
    with contextlib.suppress(ValueError, IndexError):
        if head.startswith(b"{"):
            values += (json.loads(text) for text in _JSON_SCALAR.findall(head))
        else:
            values += (value for op, value, _ in pickletools.genops(head) if op.name in _PICKLED_SCALARS)
    # A file begins with "otel_fr", "format" and the format's value. The keys in `FIRST` and their values follow.
    told = values[3 : 3 + 2 * len(FIRST)]
    return {key: value for key, value in zip(told[::2], told[1::2], strict=False) if key in FIRST}


def process_start_wall_ns(start_ns: int) -> int:
    """Convert a process start from ns since boot to wall ns; 0 (unknown) stays 0."""
    return start_ns + time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) if start_ns else 0


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of writing one file.

    Attributes:
        error: why the file was not written; empty if it was written or superseded.
        superseded: True if the file was not written, because the process has become a rank of another run.
    """

    reason: str
    path: Path
    error: str = ""
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """Files to write.

    Attributes:
        info: describes the rank; see `rank_info`.
        names: returns `paths` of the rank for a ``number``.
        urgent: write at once, without the minimum interval.
        patient: wait until `PATIENT_SHARE` allows another file.
        devices: see `DumpContents.from_ring`.
    """

    reason: str
    info: Mapping[str, Any]
    names: Callable[[int], list[tuple[Path, Format]]]
    urgent: bool = False
    devices: Mapping[int, DeviceTimes] = field(default_factory=dict)
    patient: bool = False


class Dumper:
    """Writes flight-recorder files in a thread of its own, with a reader of its own.

    It replaces a file if this process wrote it, if it is older than the process, or if an earlier attempt wrote it. Any
    other file comes from a process that had this rank in another run, and may hang there. That file is evidence, so
    this process writes beside it.

    Args:
        ring: the ring file.
        started_at: wall ns when the rank's process started; 0: unknown, at the latest now.
        on_result: called in the thread once the result of each request is known.
    """

    def __init__(self, ring: Path, started_at: int, on_result: Callable[[], None]) -> None:
        self._ring = ring
        self._started_at = started_at or time.time_ns()
        self._on_result = on_result
        self._wake = threading.Condition()
        self._request: Request | None = None
        self._working = False
        self._last = float("-inf")
        self._pace = Pace(PATIENT_SHARE, PATIENT_SECONDS, time.monotonic())
        self.results: SimpleQueue[Result] = SimpleQueue()
        threading.Thread(target=self._run, name="otel-fr-dump", daemon=True).start()

    def request(self, wanted: Request) -> None:
        """Write files soon. A newer request replaces one that waits."""
        with self._wake:
            is_patient = wanted.patient and (self._request is None or self._request.patient)
            self._request = replace(wanted, patient=is_patient)
            self._wake.notify()

    def busy(self) -> bool:
        with self._wake:
            return self._working or self._request is not None

    def _run(self) -> None:
        while True:
            with self._wake:
                while self._request is None or not self._due(self._request):
                    self._wake.wait(None if self._request is None else MIN_SECONDS / 4)
                request, self._request = self._request, None
                self._working = True
            begun = time.thread_time()
            try:
                results = self._write(request)
            except Exception as error:  # noqa: BLE001 - the thread must serve the next request
                results = [Result(request.reason, self._ring, f"{type(error).__name__}: {error}")]
            self._last = time.monotonic()
            self._pace.spend(time.thread_time() - begun, self._last)
            with self._wake:
                self._working = False
                for result in results:
                    self.results.put(result)
            self._on_result()

    def _due(self, request: Request) -> bool:
        now = time.monotonic()
        is_free = not request.patient or not self._pace.wait(now)
        return request.urgent or (is_free and now - self._last >= MIN_SECONDS)

    def _write(self, request: Request) -> list[Result]:
        files = request.names(1)
        try:
            with RingReader.open(self._ring) as reader:
                if reader.meta.get(SESSION, 0) != request.info.get(SESSION, 0):  # the ring has the next run's calls now
                    return [Result(request.reason, path, superseded=True) for path, _ in files]
                snapshot = DumpContents.from_ring(
                    reader, reason=request.reason, rank_info=request.info, devices=request.devices
                )
        except (OSError, RingFormatError) as error:
            return [Result(request.reason, path, f"{self._ring} cannot be read: {error}") for path, _ in files]
        for number in itertools.count(2):
            if not any(self._is_evidence(path, snapshot.facts) for path, _ in files):
                with contextlib.suppress(TakenError):
                    return [_write_one(request.reason, snapshot, path, fmt) for path, fmt in files]
            files = request.names(number)
        raise AssertionError("numbers have no end")

    def _is_evidence(self, path: Path, facts: Mapping[str, Any]) -> bool:
        """Return True if the path has the file of a concurrent process. ``facts``: what this process writes there."""
        with contextlib.suppress(OSError):
            if path.stat().st_mtime_ns > self._started_at and is_ours(path):
                theirs = writer_of(path)
                attempt = theirs.get("attempt")
                is_earlier = (attempt if isinstance(attempt, int) else 0) < facts.get("attempt", 0)
                return not is_earlier and any(theirs.get(key) != facts.get(key) for key in FIRST if key != "attempt")
        return False


def _write_one(reason: str, snapshot: DumpContents, path: Path, fmt: Format) -> Result:
    try:
        write_dump(path, snapshot, fmt, is_new=not os.path.lexists(path))
    except OSError as error:
        return Result(reason, path, str(error) if error.filename else f"{path}: {error}")
    return Result(reason, path)


def rank_info(reporter: Reporter) -> dict[str, Any]:
    """Return what a flight-recorder file says about the rank beyond the ring."""
    identity = reporter.run.identity
    info: dict[str, Any] = {
        "rank": identity.rank,
        "local_rank": identity.local_rank,
        "world_size": identity.world_size,
        "job_id": identity.job_id,
        "attempt": identity.attempt,
        "run_id": identity.run_id,
        "host": identity.host,
        **{key: text for key in ("gpu", "pod", "node", "namespace") if (text := getattr(identity, key))},
        "pid": identity.pid,
        "dropped": rank_report.to_object(reporter.dropped()),
        "comm_lib_version": reporter.devices.library,
    }
    if identity.session:
        info[SESSION] = identity.session
    known = reporter.known_stacks()
    if known is not None:
        texts = {"stack": known.text, "site": known.site, "doing": known.doing, **known.connections._asdict()}
        info |= {"python_blocked": known.python_blocked} | {key: text for key, text in texts.items() if text}
        info |= {"left": [rank_report.to_object(loop) for loop in known.left_loops]} if known.left_loops else {}
    if reporter.processor.seconds:
        info["starved_s"] = reporter.processor.seconds
    exception = reporter.exception()
    if exception is not None:
        info["exception"] = rank_report.to_object(exception)
    activity = reporter.activity.reported(time.monotonic_ns())
    if activity:
        info["activity"] = [rank_report.to_object(item) for item in activity]
    if reporter.activity.step is not None:
        info["step"] = reporter.activity.step.step
    if reporter.on_hang:
        info["on_hang"] = reporter.on_hang
    if reporter.thread_exceptions:
        info["thread_exceptions"] = [rank_report.to_object(item) for item in reporter.thread_exceptions]
    return info
