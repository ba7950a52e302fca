"""Kills of a collector while jobs that keep failing report to it. Each fault must be told, and none twice as new."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otel_fr.monitor.telemetry.export import FAILED_SECONDS
from otel_fr.otlp_sender import CONNECT_SECONDS
from tests.chaos.hub import Hub
from tests.chaos.jobs import JOB, STALL_SECONDS, VERDICT_SECONDS
from tests.support import torchrun
from tests.support.incident_receivers import AlertSink, Receiver
from tests.support.waiting import PATIENCE, wait_for

_Attempt = tuple[str, int]
"""(job, number of the attempt)."""

JOBS = 2
"""Jobs at the same time."""
WORLD = 2
UP_SECONDS = 3.0
"""Shortest run of a collector. It also runs as long as it was away, so that waiting reports reach it."""
APART_SECONDS = (0.0, 8.0)
"""Further seconds until the kill, if the kill does not follow a fault."""
AFTER_SECONDS = (0.0, 3.0)
"""Seconds between a fault and the kill after it, in which the fault is reported, judged, stored and told."""
DOWN_SECONDS = (0.0, 2.0)


@dataclass
class Told:
    """The counts. ``wrong``: the failed checks.

    Attributes:
        unheard: faults that were not told, because the collector was away for longer than monitors try.
        unnamed: faults that were told without the failed rank: the text, with the job and the attempt.
    """

    kills: int = 0
    faults: int = 0
    posts: int = 0
    lost: int = 0
    unheard: int = 0
    twice: int = 0
    repeated: int = 0
    unnamed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Receivers:
    """A webhook's receiver, and a receiver in place of Alertmanager."""

    def __init__(self) -> None:
        self.webhook = Receiver()
        self.alertmanager = AlertSink()

    def options(self) -> tuple[str, ...]:
        return "--webhook", self.webhook.url, "--alertmanager", self.alertmanager.url

    def posts(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the webhook's posts: (key, body)."""
        return [(headers["webhook-id"], json.loads(body)) for _, _, headers, body in list(self.webhook.requests)]

    def alerts(self) -> set[str]:
        """Return the ids of incidents in alerts."""
        return {one["annotations"]["incident_id"] for post in list(self.alertmanager.posts) for one in post}

    def close(self) -> None:
        self.webhook.close()
        self.alertmanager.close()


def run(hub: Hub, receivers: Receivers, folder: Path, seed: int, count: int, until: float) -> Told:
    """Kill the collector ``count`` times, but not after ``until`` (`time.monotonic`)."""
    told = Told()
    away: list[tuple[float, float]] = []
    chance = random.Random(f"{seed} kills")
    running = [_start(hub, folder / f"again-{number}", seed, number) for number in range(JOBS)]
    while told.kills < count and time.monotonic() < until:
        last = away[-1][1] - away[-1][0] if away else 0.0
        time.sleep(max(UP_SECONDS, last))
        _wait(chance, folder)
        began = time.time()
        hub.kill()
        time.sleep(chance.uniform(*DOWN_SECONDS))
        hub.begin()
        away.append((began, time.time()))
        told.kills += 1
    for job, place in running:
        (place / "enough").touch()
        try:
            job.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            told.wrong.append(f"{place.name} hangs")
            job.terminate()
            job.wait()
        if job.returncode != 0:
            told.wrong.append(f"{place.name} ends with status {job.returncode}")
    faults: dict[_Attempt, int] = {}
    unheard: set[_Attempt] = set()
    for path in _faults(folder):
        attempt = (f"chaos-{path.parent.name}", int(path.name.removeprefix("fault-")))
        faults[attempt] = int(path.read_text())
        if any(_may_miss(path.stat().st_mtime, *one) for one in away):
            unheard.add(attempt)
    told.faults = len(faults)
    wait_for(lambda: not _untold(faults, receivers, named=True) - unheard, VERDICT_SECONDS)
    _count(told, faults, unheard, receivers)
    return told


def _wait(chance: random.Random, folder: Path) -> None:
    """Wait until the next kill. Half of the kills follow a fault."""
    if chance.random() < 0.5:
        time.sleep(chance.uniform(*APART_SECONDS))
        return
    known = len(_faults(folder))
    wait_for(lambda: len(_faults(folder)) > known, APART_SECONDS[1])
    time.sleep(chance.uniform(*AFTER_SECONDS))


def _faults(folder: Path) -> list[Path]:
    return list(folder.glob("again-*/fault-*[0-9]"))


def _may_miss(at: float, begun: float, over: float) -> bool:
    """Return True if a collector that was away at these times may miss a fault.

    A monitor tries for 30 s, and pauses for up to 5 s.
    """
    return begun - CONNECT_SECONDS <= at < over and over - at > FAILED_SECONDS - CONNECT_SECONDS


def _start(hub: Hub, place: Path, seed: int, number: int) -> tuple[subprocess.Popen[str], Path]:
    place.mkdir()
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{hub.grpc}",
        "OTEL_FR_JOB_ID": f"chaos-{place.name}",
        "OTEL_FR_STALL_SECONDS": str(STALL_SECONDS),
        # In torchrun's own store, gloo may find the addresses of the attempt before.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    with (place / "job.log").open("w") as log:
        arguments = (str(place), "again", str(seed + number))
        job = torchrun.start(place, str(JOB), *arguments, nproc=WORLD, env=env, restarts=1_000, output=log)
    return job, place


def _untold(faults: dict[_Attempt, int], receivers: Receivers, named: bool = False) -> set[_Attempt]:
    """Return the attempts whose fault the webhook was not told; ``named``: or was told without the failed rank."""
    causes = [body["incident"] for _, body in receivers.posts() if body["incident"]["caused_by"] is None]
    told = {
        (one["job"], one["attempt"])
        for one in causes
        if faults.get((one["job"], one["attempt"])) in one["culprit_ranks"] or not (named or one["culprit_ranks"])
    }
    return faults.keys() - told


def _count(told: Told, faults: dict[_Attempt, int], unheard: set[_Attempt], receivers: Receivers) -> None:
    posts = receivers.posts()
    told.posts = len(posts)
    lost = _untold(faults, receivers)
    told.unheard = len(lost & unheard)
    unnamed = _untold(faults, receivers, named=True) - lost
    lost -= unheard
    told.lost = len(lost)
    told.wrong += [f"the webhook was not told of {job}, attempt {attempt}" for job, attempt in sorted(lost)]
    keys = Counter(key for key, _ in posts)
    told.repeated = sum(number - 1 for number in keys.values())
    new = {key: body["incident"]["id"] for key, body in posts if body["change"] == "opened"}
    opened = Counter(new.values())
    twice = [incident for incident, number in opened.items() if number > 1]
    told.twice = len(twice)
    told.wrong += [
        f"the webhook was told twice of {incident} as new: {[k for k in new if new[k] == incident]}"
        for incident in twice
    ]
    last = {body["incident"]["id"]: body["incident"] for _, body in posts}
    told.unnamed = [
        f"{one['job']}, attempt {one['attempt']}: {one['summary']}"
        for one in last.values()
        if (one["job"], one["attempt"]) in unnamed
    ]
    for one in last.values():
        if one["caused_by"] is None and one["culprit_ranks"] not in ([], [faults.get((one["job"], one["attempt"]))]):
            told.wrong.append(
                f"the innocent of {one['job']}, attempt {one['attempt']}: {one['category']} {one['culprit_ranks']}"
            )
    shown = [last[incident] for incident in receivers.alerts() & last.keys()]
    untold = [last[incident] for incident in sorted(set(new.values()) - receivers.alerts())]
    told.wrong += [f"no alert of {one['id']}" for one in untold if not any(_share(one, other) for other in shown)]


def _share(one: dict[str, Any], later: dict[str, Any]) -> bool:
    """Return True if the two incidents were open at the same time and share an alert, which shows the later one."""
    is_alike = (one["job"], one["category"]) == (later["job"], later["category"])
    return is_alike and one["detected_at"] <= later["detected_at"] <= (one["resolved_at"] or later["detected_at"])
