"""One job with one fault, and the same job without otel-fr: do both end alike, who is named, and what is left?"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.chaos.bystander import Bystander
from tests.chaos.faults import FAULTS, HELD_SECONDS, STEPS, Blame, Fault
from tests.chaos.hub import Hub
from tests.support import torchrun
from tests.support.commands import otel_fr
from tests.support.freezer import frozen, hierarchy
from tests.support.mounts import tmpfs
from tests.support.ports import free_address
from tests.support.processes import kill, monitor_of, processes_with
from tests.support.relay import Relay
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for

JOB = Path(__file__).with_name("job.py")
MARK = "CHAOS_JOB"
"""The environment variable that marks the processes of a job, whatever program they run."""
STALL_SECONDS = torchrun.UNHURRIED
START_SECONDS = 900.0
"""Limit for the ranks to be ready, or for the victim's fault: with a load of 60 they took 140 s."""
END_SECONDS = 150.0
"""Limit for the job's end after that. A job that takes longer hangs: its groups time out long before."""
GONE_SECONDS = 60.0
"""Limit for the monitors' end: they try for 30 s to report a failure."""
VERDICT_SECONDS = 40.0
CUT_SECONDS = 5.0
CLOCKS = (-400 * 86_400, -3_600, 90, 86_400)
"""Offsets of wrong clocks, in seconds."""
_TORCH_ABORTS = "terminate called without an active exception"
"""Message of torch 2.13, which sometimes aborts a rank at its exit, with or without otel-fr."""


@dataclass(frozen=True)
class Case:
    """The choices of a seed. ``delay``: seconds from the victim's first step to a fault from outside."""

    seed: int
    fault: Fault
    world: int
    victim: int
    step: int
    delay: float
    clock: int

    @classmethod
    def of(cls, seed: int, names: list[str]) -> Case:
        """Return the case of a seed. Consecutive seeds take the faults in turn."""
        chance = random.Random(seed)
        fault = FAULTS[names[seed % len(names)]]
        world = chance.choice((2, 3, 4))
        steps = [-1] * (STEPS // 2 if fault.late else 1) if fault.early else []
        steps += range(STEPS) if fault.late else []
        return cls(
            seed,
            fault,
            world,
            chance.randrange(world),
            chance.choice(steps),
            chance.uniform(0.0, 1.0),
            chance.choice(CLOCKS),
        )

    def __str__(self) -> str:
        when = f"after {self.delay:.2f} s" if self.fault.outside else f"step {self.step}"
        return f"{self.fault.name:17} rank {self.victim} of {self.world}, {when}"


@dataclass(frozen=True)
class End:
    """How a job ended: torchrun's exit status, its message about the victim, and the results by rank."""

    status: int
    victim: str
    results: dict[str, str]

    def __str__(self) -> str:
        return (
            f"status {self.status}, victim {self.victim or 'ended well'}, results of {sorted(self.results) or 'none'}"
        )


@dataclass
class Outcome:
    """The failed checks of a case, a sentence each.

    Attributes:
        named: the causes from the collector, and from the files.
        seconds: from the fault until the collector opened an incident that names the victim; None: it did not.
    """

    case: Case
    wrong: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    seconds: float | None = None


class Bare:
    """The same jobs without otel-fr. Victim and step do not change how a job ends, so each job runs once."""

    def __init__(self, folder: Path, clock: Path | None) -> None:
        self._folder = folder
        self._clock = clock
        self._ends: dict[tuple[str, int, bool], Future[End]] = {}
        self._runner = ThreadPoolExecutor(1)

    def end(self, case: Case) -> Future[End]:
        """Return how the case's job ends. Jobs run one after the other, beside the jobs with otel-fr."""
        key = (case.fault.name, case.world, case.step < 0)
        if key not in self._ends:
            self._ends[key] = self._runner.submit(self._run, case)
        return self._ends[key]

    def _run(self, case: Case) -> End:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            return _Run(case, Path(folder), {"OTEL_FR_ENABLED": "0"}, self._clock).to_end(None, None)


class _Run:
    """One execution of a case's job, in its own folder."""

    def __init__(self, case: Case, folder: Path, env: dict[str, str], clock: Path | None) -> None:
        self.case = case
        self.folder = folder
        self.mark = f"{folder.name}-{case.seed}"
        self.output = ""
        self.rings = Path(env.get("OTEL_FR_RING_DIR", folder))
        self._env = {MARK: self.mark, **env}
        if "clock" in case.fault.name and clock is not None:
            odd = {"CHAOS_CLOCK_RANK": str(case.victim), "CHAOS_CLOCK_SECONDS": str(case.clock)}
            self._env |= {"LD_PRELOAD": str(clock), **odd}

    def to_end(self, hub: Hub | None, relay: Relay | None) -> End:
        """Run the job to its end, again if torch itself aborts a rank at its exit.

        Raises:
            subprocess.TimeoutExpired: the job hung, and its processes were killed.
        """
        for _ in range(5):
            end = self._once(hub, relay)
            if _TORCH_ABORTS not in self.output:
                break
        return end

    def _once(self, hub: Hub | None, relay: Relay | None) -> End:
        case = self.case
        for old in (*self.folder.glob("r*-*"), self.folder / "struck", self.folder / "failed"):
            old.unlink(missing_ok=True)
        if not case.fault.outside:
            (self.folder / "struck").touch()
        arguments = [str(self.folder), case.fault.name, str(case.victim), str(case.step)]
        arguments += [str(STEPS), str(HELD_SECONDS)]
        log = self.folder / "job.log"
        with log.open("w") as output:
            # Not forks of a warm process: /proc would show its environment, and they could not preload a library.
            start = functools.partial(torchrun.start, program=torchrun.FRESH)
            job = start(self.folder, str(JOB), *arguments, nproc=case.world, env=self._env, output=output)
        undo: list[int] = []
        begun = self.folder / (f"ready-{case.victim}" if case.fault.outside else "failed")
        try:
            wait_for(lambda: begun.exists() or job.poll() is not None, START_SECONDS)
            if case.fault.outside and begun.exists():
                undo = self._strike(int(begun.read_text()), hub, relay)
            job.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.end_all()
            job.wait()
            raise
        finally:
            for pid in undo:
                kill(pid, signal.SIGCONT)
            self.output = log.read_text(errors="replace")
        found = re.search(rf"rank +: {case.victim} \(local.*?exitcode +: (-?\d+)", self.output, re.DOTALL)
        results = {path.name: path.read_text() for path in self.folder.glob("result-*") if path.suffix != ".new"}
        return End(job.returncode, found[1] if found else "", results)

    def _strike(self, rank: int, hub: Hub | None, relay: Relay | None) -> list[int]:
        """Do the case's fault from outside. Returns processes that stay stopped until the job has ended.

        Args:
            rank: the victim's process.
        """
        time.sleep(self.case.delay)
        name = self.case.fault.name
        stopped: list[int] = []
        if name == "killed":
            kill(rank)
        elif name == "stopped":
            kill(rank, signal.SIGSTOP)
            (self.folder / "struck").touch()
            time.sleep(HELD_SECONDS)
            kill(rank, signal.SIGCONT)
        elif name.endswith("frozen") and (root := hierarchy()) is not None:
            with frozen([rank] if name == "frozen" else self.processes(), root):
                (self.folder / "struck").touch()
                time.sleep(HELD_SECONDS)
        elif hub is not None and name.startswith("monitor"):
            monitor = wait_for(lambda: monitor_of(rank, self.rings))
            kill(monitor, signal.SIGKILL if name.endswith("killed") else signal.SIGSTOP)
            stopped = [monitor]
        elif hub is not None and relay is not None:
            _hold_collector(name, hub, relay)
        (self.folder / "struck").touch()
        return stopped

    def processes(self) -> list[int]:
        return processes_with(f"{MARK}={self.mark}\0", "environ")

    def end_all(self) -> None:
        for pid in self.processes():
            kill(pid)


def _hold_collector(name: str, hub: Hub, relay: Relay) -> None:
    if name == "collector killed":
        hub.kill()
        hub.begin()
    elif name == "collector stopped":
        hub.look_away()
        kill(hub.collector.process.pid, signal.SIGSTOP)
        time.sleep(CUT_SECONDS)
        kill(hub.collector.process.pid, signal.SIGCONT)
        hub.look()
    else:
        relay.cut(CUT_SECONDS)


@contextlib.contextmanager
def _surroundings(case: Case, hub: Hub, folder: Path) -> Iterator[tuple[dict[str, str], Relay]]:
    """Yield the environment of the job with otel-fr, and the network between the job and the collector."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with contextlib.ExitStack() as stack:
        host, port = hub.grpc.rsplit(":", 1)
        relay = stack.enter_context(Relay(host, int(port)))
        address = free_address() if case.fault.name == "no collector" else f"127.0.0.1:{relay.port}"
        rings = Path(tempfile.mkdtemp(prefix="otel-fr-chaos-", dir=memory))
        stack.callback(shutil.rmtree, rings, ignore_errors=True)
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}",
            "OTEL_FR_JOB_ID": f"chaos-{case.seed}",
            "OTEL_FR_STALL_SECONDS": str(STALL_SECONDS),
            "OTEL_FR_RING_DIR": str(rings),
        }
        if "full" in case.fault.name:
            full = stack.enter_context(tmpfs(folder / "full", "size=64k"))
            with contextlib.suppress(OSError):
                (full / "filled").write_bytes(bytes(1 << 20))
            env["OTEL_FR_DUMP_DIR" if case.fault.name == "kill full" else "OTEL_FR_RING_DIR"] = str(full)
        yield env, relay


def run(case: Case, hub: Hub, bare: Bare, folder: Path, clock: Path | None) -> Outcome:
    """Run a case and its job without otel-fr, and compare them."""
    outcome = Outcome(case)
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        env, relay = stack.enter_context(_surroundings(case, hub, folder))
        is_collectors = case.fault.name.startswith("collector")
        beside = stack.enter_context(Bystander(hub, case.seed)) if is_collectors else None
        run = _Run(case, folder, env, clock)
        sockets = hub.sockets()
        end, expected = _end_of(lambda: run.to_end(hub, relay)), _end_of(bare.end(case).result)
        if end != expected:
            how = end or "it hangs"
            outcome.wrong.append(f"{how}; without otel-fr: {expected or 'it hangs'}" + _differing(end, expected))
        causes = _live(case, hub, run)
        if beside is not None:
            outcome.wrong += beside.hang(VERDICT_SECONDS)
        outcome.wrong += _left(case, run)
        causes = cause_incidents(hub.incidents(f"chaos-{case.seed}")) or causes
        if case.fault.blame is Blame.VICTIM:
            outcome.seconds = _seconds_to(case, causes, run)
        outcome.named = [f"{one['category']} {one['culprit_ranks']}" for one in causes]
        outcome.wrong += _blamed(case, causes, "the collector", case.fault.blame)
        dumps = folder / "dumps"
        if dumps.is_dir() and any(dumps.iterdir()):
            # Ranks that saw a fault write files. The victim may have left none.
            asked = Blame.PERHAPS if case.fault.blame is Blame.VICTIM else case.fault.blame
            done = otel_fr("analyze", dumps, "--format", "json")
            found = cause_incidents(json.loads(done.stdout)["incidents"]) if done.stdout else []
            outcome.named += [f"file: {one['category']} {one['culprit_ranks']}" for one in found]
            outcome.wrong += _blamed(case, found, "otel-fr analyze", asked)
            if not done.stdout:
                outcome.wrong.append(f"otel-fr analyze says {done.stderr[-300:]}")
    if not wait_for(lambda: hub.sockets() <= sockets, GONE_SECONDS):
        outcome.wrong.append(f"the collector has {hub.sockets()} sockets open, {sockets} before")
    return outcome


def _end_of(to_end: Callable[[], End]) -> End | None:
    """Return how the job ended; None: it hangs."""
    try:
        return to_end()
    except subprocess.TimeoutExpired:
        return None


def _differing(end: End | None, expected: End | None) -> str:
    if end is None or expected is None or end.results.keys() != expected.results.keys():
        return ""
    return ": other numbers" if end.results != expected.results else ""


def _live(case: Case, hub: Hub, run: _Run) -> list[dict[str, Any]]:
    """Return the collector's causes. If the victim must be named, wait until it is."""
    job = f"chaos-{case.seed}"

    def named() -> list[dict[str, Any]]:
        return [one for one in cause_incidents(hub.incidents(job)) if one["culprit_ranks"] == [case.victim]]

    return wait_for(named, VERDICT_SECONDS if case.fault.blame is Blame.VICTIM else 0.0)


def _seconds_to(case: Case, causes: list[dict[str, Any]], run: _Run) -> float | None:
    """Return the seconds from the fault until an incident named the victim."""
    began = max(path.stat().st_mtime for name in ("struck", "failed") if (path := run.folder / name).exists())
    seen = [
        datetime.fromisoformat(one["detected_at"].replace("Z", "+00:00")).timestamp()
        for one in causes
        if one["culprit_ranks"] == [case.victim]
    ]
    return max(0.0, min(seen) - began) if seen else None


def _left(case: Case, run: _Run) -> list[str]:
    """Return the job's processes and files that should not be left, but are."""
    wait_for(lambda: not run.processes(), GONE_SECONDS)
    wrong = []
    for pid in run.processes():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            wrong.append(f"process {pid} is left: {command[:200]}")
    run.end_all()
    files = [path for path in run.rings.rglob("*") if not path.is_dir() and path.name != "filled"]
    if case.fault.blame is not Blame.NOBODY:
        # Monitors' notes about a failure stay for an hour, so that none logs it again (monitor/control/node.py).
        files = [path for path in files if not path.parent.name.startswith("run-")]
    if not case.fault.keeps_ring and files:
        wrong.append(f"{len(files)} files are left: {', '.join(str(path) for path in files[:4])}")
    return wrong


def _blamed(case: Case, causes: list[dict[str, Any]], who: str, blame: Blame) -> list[str]:
    """Return what is wrong with the causes."""
    named = [(one["category"], one["culprit_ranks"]) for one in causes if one["culprit_ranks"]]
    innocent = [one for one in named if blame is Blame.NOBODY or one[1] != [case.victim]]
    if innocent:
        return [f"{who} names the innocent: {innocent} of {named}"]
    if blame is Blame.VICTIM and not named:
        return [f"{who} names nobody: {[(one['category'], one['culprit_ranks']) for one in causes]}"]
    return []
