"""One run of the fuzz: workers that send, a watch over the collector, a reader, and the failures."""

from __future__ import annotations

import base64
import contextlib
import random
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.cases import Case, Failure, save
from tests.fuzz.clients import Client
from tests.fuzz.databases import make_case, make_databases, options, start_with
from tests.fuzz.generate import Generator
from tests.fuzz.reader import Reader
from tests.fuzz.seeds import Seeds, make_seeds
from tests.fuzz.tokens import write_tokens
from tests.support.collector_process import Collector, running
from tests.support.health import HealthWatch

WORKERS = 3
"""Clients that send at the same time."""
KEPT = 100
"""Inputs that are saved with a failure of the collector. It may show later than its cause."""
MAX_FAILURES = 10
"""Failures after which a run ends."""
CHECK_SECONDS = 1.0
TOKEN_SECONDS = 3.0
"""Seconds between two changes of the tokens file."""
DATABASE_PAUSE = 1.0
"""Seconds from the end of a collector with mutated databases to the start of the next one."""
FILE_TARGETS = ("dump", "ring", "folder")
MIB = 1 << 20


@dataclass(frozen=True)
class Ceilings:
    """Limits: seconds of /healthz, MiB of the collector, seconds and MiB of one file.

    Time in which other programs keep the asking or the answering thread from a processor does not count for /healthz.
    """

    latency: float = 1.5
    resident: float = 400.0
    reader_seconds: float = 30.0
    reader_memory: float = 500.0


@dataclass
class Outcome:
    """The measurements and failures of a run. ``counts``: cases by target."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Path] = field(default_factory=list)
    slowest_health: float = 0.0
    resident: int = 0
    slowest_file: float = 0.0
    largest_file: int = 0


class Fuzz:
    """A run.

    Args:
        folder: for its files; failures are saved in ``folder/failures``.
        seed: of all random choices in the run. The order of the workers is up to the machine.
    """

    def __init__(self, folder: Path, seed: int, ceilings: Ceilings) -> None:
        self.outcome = Outcome()
        self._folder = folder
        self._seed = seed
        self._ceilings = ceilings
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._recent: deque[Case] = deque(maxlen=KEPT)
        self._known: set[str] = set()

    def run(self, seconds: float) -> Outcome:
        """Make and send cases for so long."""
        folder = self._folder / "seeds"
        folder.mkdir(parents=True, exist_ok=True)
        seeds = make_seeds(folder)
        databases = make_databases(self._folder / "seeds" / "databases")
        with collector(self._folder, rnd := random.Random(f"{self._seed} tokens")) as started:
            threads = [
                self._thread(self._start_with_databases, databases),
                self._thread(self._change_tokens, rnd),
                *(self._thread(self._work, started, seeds, worker) for worker in range(WORKERS)),
                self._thread(self._read, seeds),
                self._thread(self._ask_health, started),
            ]
            for thread in threads:
                thread.start()
            begun = time.monotonic()
            while time.monotonic() < begun + seconds and not self._end.is_set():
                self._end.wait(CHECK_SECONDS)
                self._check(started)
            self._end.set()
            for thread in threads:
                thread.join()
            self._check(started)
        return self.outcome

    def replay(self, cases: list[Case]) -> Outcome:
        """Send these cases, in their order."""
        rnd = random.Random(0)
        with collector(self._folder, rnd) as started, contextlib.closing(Client(started)) as client:
            watch = self._thread(self._ask_health, started)
            watch.start()
            for case in cases:
                if case.target == "database":
                    self._start_with(case)
                elif case.target in FILE_TARGETS:
                    with contextlib.closing(Reader(self._folder)) as reader:
                        self._read_one(reader, case)
                else:
                    self._send_one(client, case)
                self._check(started)
            self._end.wait(2 * CHECK_SECONDS)
            self._check(started)
            self._end.set()
            watch.join()
        return self.outcome

    def _thread(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*arguments)
            except Exception:  # noqa: BLE001  a worker that ends tests nothing more
                self._fail(f"the fuzz itself:\n{traceback.format_exc()}", [])
                self._end.set()

        return threading.Thread(target=guarded)

    def _work(self, started: Collector, seeds: Seeds, worker: int) -> None:
        generator = Generator(seeds, random.Random(f"{self._seed} {worker}"), worker)
        with contextlib.closing(Client(started)) as client:
            while not self._end.is_set():
                self._send_one(client, generator.for_collector())

    def _send_one(self, client: Client, case: Case) -> None:
        with self._lock:
            self._recent.append(case)
            self.outcome.counts[case.target] += 1
        wrong = client.send(case)
        if wrong and not self._end.is_set():
            self._fail(wrong, [case])

    def _read(self, seeds: Seeds) -> None:
        generator = Generator(seeds, random.Random(f"{self._seed} reader"))
        with contextlib.closing(Reader(self._folder)) as reader:
            while not self._end.is_set():
                self._read_one(reader, generator.for_reader())

    def _change_tokens(self, rnd: random.Random) -> None:
        while not self._end.wait(TOKEN_SECONDS):
            write_tokens(rnd, self._folder / "tokens")

    def _start_with_databases(self, files: dict[str, bytes]) -> None:
        rnd = random.Random(f"{self._seed} databases")
        while not self._end.wait(DATABASE_PAUSE):
            self._start_with(make_case(rnd, files, self._folder / "rows"))

    def _start_with(self, case: Case) -> None:
        with self._lock:
            self.outcome.counts[case.target] += 1
        wrong = start_with(case, self._folder / "restarted")
        if wrong:
            self._fail(wrong, [case])

    def _read_one(self, reader: Reader, case: Case) -> None:
        path = self._folder / ("trace_0.ring" if case.target == "ring" else "trace_0")
        if case.target == "folder":
            path = self._folder / "together"
            path.mkdir(exist_ok=True)
            (path / "trace_0").write_bytes(base64.b64decode(case.more["beside"]))
            (path / "trace_1").write_bytes(case.data)
        else:
            path.write_bytes(case.data)
        with self._lock:
            self.outcome.counts[case.target] += 1
        wrong, took, size = reader.read(path, self._ceilings.reader_seconds)
        outcome = self.outcome
        outcome.slowest_file, outcome.largest_file = max(outcome.slowest_file, took), max(outcome.largest_file, size)
        if size > self._ceilings.reader_memory * MIB:
            wrong = f"the reader took {size / MIB:.0f} MiB"
        if wrong:
            self._fail(wrong, [case])

    def _ask_health(self, started: Collector) -> None:
        watch = HealthWatch(started)
        while not self._end.is_set():
            took = watch.ask()
            self.outcome.slowest_health = watch.slowest
            if took > self._ceilings.latency and not self._end.is_set():
                self._fail(f"/healthz took longer than {self._ceilings.latency} s: {took:.1f} s", self._kept())
            self._end.wait(0.05)

    def _check(self, started: Collector) -> None:
        """Check that the collector runs, that its memory is within the limit, and that its log has no traceback."""
        if started.process.poll() is not None:
            self._fail(f"the collector ended with status {started.process.returncode}", self._kept())
            self._end.set()
            return
        self.outcome.resident = max(self.outcome.resident, started.resident())
        if self.outcome.resident > self._ceilings.resident * MIB:
            self._fail(f"the collector holds more than {self._ceilings.resident:.0f} MiB", self._kept())
            self._end.set()
        log = started.err_file.read_text(errors="replace")
        at = log.find("Traceback")
        if at >= 0:
            self._fail(f"the log of the collector:\n{log[at - 300 : at + 3_000]}", self._kept())

    def _kept(self) -> list[Case]:
        with self._lock:
            return list(self._recent)

    def _fail(self, what: str, cases: list[Case]) -> None:
        """Save a failure, but only the first of each kind."""
        kind = " ".join(word for word in what.split("\n")[-2 if what.count("\n") > 1 else 0].split() if word.isalpha())
        with self._lock:
            if kind in self._known:
                return
            self._known.add(kind)
            name = f"{self._seed}-{len(self._known)}-{cases[-1].target.replace(' ', '-') if cases else 'none'}"
            path = save(self._folder / "failures", name, Failure(what, cases))
            self.outcome.failures.append(path)
            print(f"FAILED: {what}\n  replay: python -m tests.fuzz --replay {path}", flush=True)
            if len(self._known) >= MAX_FAILURES:
                self._end.set()


@contextlib.contextmanager
def collector(folder: Path, rnd: random.Random) -> Iterator[Collector]:
    """Run a collector that stores, checks tokens, and forwards to a missing backend."""
    tokens = folder / "tokens"
    write_tokens(rnd, tokens)
    with running(folder / "run", *options(folder / "data"), "--tokens", str(tokens)) as started:
        yield started
