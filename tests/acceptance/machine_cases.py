"""What goes wrong with hosts and the links between them, and what otel-fr says of it: ``make machines``.

Each case is a real torchrun job of two ranks on each of its hosts (`tests.support.machines`), and a collector on
another host.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.commands import otel_fr
from tests.support.machine_jobs import RANKS, HostCollector, HostJob
from tests.support.machines import Host, machines
from tests.support.verdicts import cause_incidents
from tests.support.waiting import PATIENCE, until

OUTAGE = 36.0
"""Seconds for which the collector's link is cut: longer than clients wait between two attempts to connect."""
AFTER = 30.0
"""Seconds after an outage in which a healthy job must raise nothing."""


@dataclass
class Outcome:
    """What was seen of a case.

    Attributes:
        verdicts: category and culprits of each cause that was published, in any of its states.
        last: the last state of each cause. seconds: from the fault to the first incident.
        said: by host, otel-fr's lines in the job's output. ends: by host, exit status of its agent.
        notes: what else is checked, and whether it held.
    """

    verdicts: list[tuple[str, list[int]]] = field(default_factory=list)
    last: list[dict[str, Any]] = field(default_factory=list)
    seconds: float | None = None
    said: dict[str, list[str]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    notes: dict[str, bool] = field(default_factory=dict)

    @property
    def hosts(self) -> set[str]:
        """The hosts of the culprits."""
        return {
            one["places"][str(rank)]["host"]
            for one in self.last
            for rank in one["culprit_ranks"]
            if str(rank) in one["places"]
        }


@dataclass
class Site:
    """The hosts of a case: those of the job, and the one of the collector."""

    folder: Path
    hosts: list[Host]
    watcher: Host
    begun: float = 0.0

    def collector(self) -> HostCollector:
        return HostCollector(self.watcher, self.folder / "collector")

    def job(self, collector: HostCollector | None, **options: Any) -> HostJob:
        """A job on all hosts, which has made steps."""
        options.setdefault("hosts", self.hosts)
        hosts = options.pop("hosts")
        job = HostJob(hosts, self.folder / "job", collector=collector, **options)
        job.wait_steps(RANKS * len(hosts))
        if collector is not None:
            until(lambda: collector.heard() == RANKS * len(hosts))
        return job

    def fault(self) -> None:
        """The fault happens now."""
        self.begun = time.time()

    def outcome(self, job: HostJob, collector: HostCollector | None, **notes: bool) -> Outcome:
        found = Outcome(notes=notes)
        if collector is not None:
            lines = cause_incidents(collector.lines())
            found.verdicts = [(one["category"], one["culprit_ranks"]) for one in lines]
            found.last = collector.causes()
            if found.last:
                found.seconds = collector.first_at - self.begun
        found.said = {host.name: job.said(host) for host in job.hosts}
        found.ends = {name: agent.returncode for name, agent in job.agents.items() if agent.poll() is not None}
        return found


def hang(site: Site) -> Outcome:
    collector = site.collector()
    job = site.job(collector)
    site.fault()
    job.touch("hang-3")
    until(lambda: collector.causes() and all(map(job.said, site.hosts)))
    (job.folder / "hang-3").unlink()
    job.touch("go")
    return site.outcome(job, collector, ended_well=set(job.stop().values()) == {0})


def host_killed(site: Site) -> Outcome:
    return _lost(site, 1, cut=False)


def host_lost(site: Site) -> Outcome:
    return _lost(site, 1, cut=True)


def store_killed(site: Site) -> Outcome:
    return _lost(site, 0, cut=False)


def store_lost(site: Site) -> Outcome:
    return _lost(site, 0, cut=True)


def _lost(site: Site, number: int, *, cut: bool) -> Outcome:
    collector = site.collector()
    job = site.job(collector)
    site.fault()
    if cut:
        site.hosts[number].cut()
    site.hosts[number].kill()
    until(collector.causes)
    collector.settle()
    return site.outcome(job, collector)


def cut_healthy(site: Site) -> Outcome:
    collector = site.collector()
    job = site.job(collector, OTEL_FR_ON_PEER_FAILURE="abort")
    site.fault()
    site.watcher.cut()
    time.sleep(OUTAGE)
    site.watcher.mend()
    mended = time.time()
    unheard = 0.0
    while time.time() < mended + AFTER:
        time.sleep(0.5)
        if collector.heard() < RANKS * len(site.hosts):
            unheard = time.time() - mended
    ended_well = set(job.stop().values()) == {0}
    found = site.outcome(job, collector, ended_well=ended_well, all_heard_in_10_s=unheard < 10.0)
    found.seconds = unheard
    return found


def cut_hanging(site: Site) -> Outcome:
    collector = site.collector()
    job = site.job(collector)
    site.watcher.cut()
    time.sleep(OUTAGE / 3)
    job.touch("hang-3")
    time.sleep(OUTAGE - OUTAGE / 3)
    site.watcher.mend()
    site.fault()
    until(collector.causes)
    collector.settle()
    (job.folder / "hang-3").unlink()
    job.touch("go")
    return site.outcome(job, collector, ended_well=set(job.stop().values()) == {0})


def partition(site: Site) -> Outcome:
    collector = site.collector()
    job = site.job(collector)
    site.fault()
    site.hosts[0].cut_from(site.hosts[1])
    until(collector.causes)
    collector.settle()
    found = [*collector.causes(), *_from_files(site, job)]
    named = {"hosts n0 and n1 do not reach each other" in one["summary"] for one in found}
    return site.outcome(job, collector, both_hosts_named=named == {True})


def spare(site: Site) -> Outcome:
    """Two hosts train, the third is a spare; the second is killed."""
    collector = site.collector()
    first, second, third = site.hosts
    job = site.job(collector, hosts=[first, second], nodes="2", restarts=3)
    job.join(third)
    time.sleep(5)
    site.fault()
    second.kill()
    job.wait_steps(2 * RANKS)
    time.sleep(5)
    job.touch("stop")
    well = {name: job.agents[name].wait(PATIENCE) for name in (first.name, third.name)}
    job.hosts.append(third)
    return site.outcome(job, collector, went_on_with_the_spare=set(well.values()) == {0})


def scale_up(site: Site) -> Outcome:
    """Two hosts train, a third one joins as planned."""
    collector = site.collector()
    first, second, third = site.hosts
    job = site.job(collector, hosts=[first, second], nodes="2:3", restarts=3)
    site.fault()
    job.join(third)
    job.hosts.append(third)
    job.wait_steps(3 * RANKS)
    time.sleep(5)
    return site.outcome(job, collector, ended_well=set(job.stop().values()) == {0})


def abort(site: Site) -> Outcome:
    collector = site.collector()
    job = site.job(collector, OTEL_FR_ON_PEER_FAILURE="abort")
    site.fault()
    job.touch("freeze-3")
    ends = {name: job.agents[name].wait(PATIENCE) for name in ("n0", "n2")}
    return site.outcome(job, collector, others_ended=set(ends.values()) == {1})


def exit_and_restart(site: Site) -> Outcome:
    collector = site.collector()
    job = site.job(collector, restarts=2, OTEL_FR_ON_PEER_FAILURE="exit")
    site.fault()
    job.touch("freeze-3")
    job.wait_steps(RANKS * len(site.hosts))
    return site.outcome(job, collector, went_on=set(job.stop().values()) == {0})


def lost_and_exit(site: Site) -> Outcome:
    """Nothing closes the connections to the lost host: its peers wait, until they are told that it has failed."""
    collector = site.collector()
    job = site.job(collector, nodes="2:3", restarts=2, OTEL_FR_ON_PEER_FAILURE="exit")
    site.fault()
    site.hosts[1].cut()
    site.hosts[1].kill()
    job.wait_steps(2 * RANKS)
    print(f"  the others train again {time.time() - site.begun:.0f} s after the loss")
    job.touch("stop")
    well = {job.agents[name].wait(PATIENCE) for name in ("n0", "n2")} == {0}
    return site.outcome(job, collector, went_on_without_it=well)


def lost_of_two_and_exit(site: Site) -> Outcome:
    """Half of the hosts are silent: the other one's kernel shows that it is not only the collector that is cut off."""
    collector = site.collector()
    first, second, _ = site.hosts
    job = site.job(collector, hosts=[first, second], nodes="1:2", restarts=2, OTEL_FR_ON_PEER_FAILURE="exit")
    site.fault()
    second.cut()
    second.kill()
    job.wait_steps(RANKS)
    print(f"  the other trains again {time.time() - site.begun:.0f} s after the loss")
    job.touch("stop")
    return site.outcome(job, collector, went_on_without_it=job.agents["n0"].wait(PATIENCE) == 0)


def no_collector(site: Site) -> Outcome:
    """Each host has its own files; then they are in one folder."""
    job = site.job(None)
    site.fault()
    job.touch("raise-3")
    job.end()
    found = site.outcome(job, None)
    found.last = _from_files(site, job)
    found.verdicts = [(one["category"], one["culprit_ranks"]) for one in found.last]
    return found


def _from_files(site: Site, job: HostJob) -> list[dict[str, Any]]:
    """The causes, from the files of all hosts in one folder."""
    together = site.folder / "together"
    together.mkdir()
    for host in site.hosts:
        for path in (job.folder / f"dumps-{host.name}").iterdir():
            shutil.copy(path, together)
    done = otel_fr("analyze", together, "--format", "json")
    return cause_incidents(json.loads(done.stdout)["incidents"])


@dataclass(frozen=True)
class Case:
    """``truth``: category and culprits, each of them right; empty: nothing must be said. ``host``: the culprits'."""

    run: Callable[[Site], Outcome]
    truth: Sequence[tuple[str, list[int]]]
    host: str = ""


def _lost_truth(ranks: list[int]) -> list[tuple[str, list[int]]]:
    """Of a host that is lost: at first it may not be known who it is; whether its ranks had joined is by chance."""
    return [(category, who) for category in ("missing_rank", "stalled_collective") for who in (ranks, [])]


CASES: Mapping[str, Case] = {
    "hang": Case(hang, [("missing_rank", [3])], "n1"),
    "host killed": Case(host_killed, _lost_truth([2, 3]), "n1"),
    "host lost": Case(host_lost, _lost_truth([2, 3]), "n1"),
    "store's host killed": Case(store_killed, _lost_truth([0, 1]), "n0"),
    "store's host lost": Case(store_lost, _lost_truth([0, 1]), "n0"),
    "collector cut off, healthy": Case(cut_healthy, []),
    "collector cut off, hang": Case(cut_hanging, [("missing_rank", [3])], "n1"),
    "two hosts cut apart": Case(partition, [("stalled_collective", [])]),
    "spare for a killed host": Case(spare, _lost_truth([2, 3]), "n1"),
    "host lost, exit": Case(lost_and_exit, _lost_truth([2, 3]), "n1"),
    "host of two lost, exit": Case(lost_of_two_and_exit, _lost_truth([2, 3]), "n1"),
    "scale up": Case(scale_up, []),
    "abort": Case(abort, [("missing_rank", [3]), ("rank_stuck", [3])], "n1"),
    "exit and restart": Case(exit_and_restart, [("missing_rank", [3]), ("rank_stuck", [3])], "n1"),
    "no collector": Case(no_collector, [("rank_dead", [3])], "n1"),
}


def observe(case: Case, folder: Path) -> Outcome:
    """Run a case on hosts of its own."""
    with machines(folder, "n0", "n1", "n2", "obs") as (*hosts, watcher):
        return case.run(Site(folder, hosts, watcher))


def is_right(case: Case, found: Outcome) -> bool:
    """Everything that was published is true, in each of its states, and the culprits' host is the right one."""
    said = bool(found.verdicts) is bool(case.truth) and all(one in case.truth for one in found.verdicts)
    return said and found.hosts == ({case.host} if case.host else set()) and all(found.notes.values())


def row(name: str, case: Case, found: Outcome) -> str:
    """A row of the table, and what each host's log says."""
    truth = " or ".join(f"{category} {ranks}" for category, ranks in case.truth) or "nothing"
    said = "; ".join(f"{category} {ranks}" for category, ranks in _once(found.verdicts)) or "nothing"
    seconds = "" if found.seconds is None else f"{found.seconds:.1f}"
    verdict = "right" if is_right(case, found) else "WRONG"
    lines = [
        f"| {name} | {truth} | {said} | {verdict} | {seconds} | {', '.join(sorted(found.hosts))} | {found.notes} |"
    ]
    lines += [f"    {one['summary']}" for one in found.last]
    for host, texts in found.said.items():
        lines += [f"    {host}: {text}" for text in texts or ["-"]]
    return "\n".join(lines)


def _once(verdicts: Sequence[tuple[str, list[int]]]) -> list[tuple[str, list[int]]]:
    found: list[tuple[str, list[int]]] = []
    for one in verdicts:
        if one not in found:
            found.append(one)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {', '.join(CASES)} (default: all)")
    parser.add_argument("--keep", type=Path, help="a folder for the cases' logs and files")
    args = parser.parse_args()
    print("| case | truth | said | verdict | seconds | host | notes |\n|---|---|---|---|---|---|---|")
    wrong = 0
    for name in args.cases or CASES:
        folder = Path(tempfile.mkdtemp(prefix="otel-fr-machines-", dir=args.keep))
        try:
            found = observe(CASES[name], folder)
        except AssertionError as error:
            print(f"| {name} | | | WRONG | | | {str(error)[:200]} |", flush=True)
            wrong += 1
            continue
        wrong += not is_right(CASES[name], found)
        print(row(name, CASES[name], found), flush=True)
        if args.keep is None:
            shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
