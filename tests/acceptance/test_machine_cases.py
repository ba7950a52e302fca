"""Faults of hosts and of the links between them, and the incidents that otel-fr publishes: `make machines`.

Each case is a real torchrun job with two ranks on each host (`tests.support.machines`), and a collector on another
host. All published incidents must be true, in each of their states. The table of the cases is printed at the end.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from otel_fr.checks.model import NODE_FAILED
from tests.support import torchrun
from tests.support.commands import otel_fr
from tests.support.external_programs import needs_otelcol
from tests.support.machine_jobs import RANKS, HostCollector, HostJob, start_node_collector
from tests.support.machine_table import Table, named
from tests.support.machines import Host, machines
from tests.support.verdicts import cause_incidents
from tests.support.waiting import PATIENCE, until

pytestmark = [*torchrun.needed, pytest.mark.long]

OUTAGE = 36.0
"""Seconds for which the collector's link is cut: longer than clients' wait between two attempts to connect."""
AFTER = 30.0
"""Seconds after an outage in which a healthy job must raise no incident."""
LOOKED = 35.0
"""Seconds in which monitors check their ranks' connections often enough to call a link slow."""
NODE_OUTAGE = 30.0
"""Seconds for which a node's OpenTelemetry Collector is cut off: as long as it keeps rank reports."""
FREED = 30.0
"""Seconds after a rank's failure in which other hosts' agents end: the stall time, torchrun's own time, a margin."""
HANGS = ("missing_rank", (3,))

Said = tuple[str, tuple[int, ...]]
"""(category, culprits)."""


@dataclass
class Site:
    """The hosts of a case: the hosts of the job, and the collector's host.

    Attributes:
        truth, since: the fault, and when it began (Unix seconds). causes: returns the incidents that are causes.
        logs: of the job's hosts, by name.
    """

    folder: Path
    hosts: list[Host]
    watcher: Host
    truth: str = "no fault"
    since: float = 0.0
    causes: Callable[[], list[dict[str, Any]]] = list
    logs: dict[str, Path] = field(default_factory=dict)

    def train(self, hosts: list[Host] | None = None, **options: Any) -> tuple[HostCollector, HostJob]:
        """Start a collector, and a job on these hosts, or on all. Return once the job has made steps."""
        collector = HostCollector(self.watcher, self.folder / "collector")
        job = self.start(hosts, collector=collector, **options)
        until(lambda: collector.heard() == RANKS * len(job.hosts))
        self.causes = collector.causes
        return collector, job

    def train_behind_node_collectors(self, **options: Any) -> tuple[HostCollector, HostJob]:
        """Like `train`, but the ranks send to an OpenTelemetry Collector on their own host."""
        (endpoint,) = {start_node_collector(host, self.folder, self.watcher) for host in self.hosts}
        return self.train(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **options)

    def start(self, hosts: list[Host] | None = None, **options: Any) -> HostJob:
        """Start a job on these hosts, or on all. Return once it has made steps."""
        job = HostJob(self.hosts if hosts is None else hosts, self.folder / "job", **options)
        self.logs = job.logs
        job.wait_steps(RANKS * len(job.hosts))
        return job

    def fault(self, truth: str) -> None:
        """Note that the fault begins now."""
        self.truth, self.since = truth, time.time()


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> Table:
    found = Table()
    pytestconfig.pluginmanager.register(found)
    return found


@pytest.fixture
def site(tmp_path: Path, table: Table, request: pytest.FixtureRequest) -> Iterator[Site]:
    with machines(tmp_path, "n0", "n1", "n2", "obs") as (*hosts, watcher):
        site = Site(tmp_path, hosts, watcher)
        yield site
    case = request.node.name.removeprefix("test_").replace("_", " ")
    table.add(case, site.truth, site.since, site.causes(), site.logs)


def check(collector: HostCollector, host: str, *truth: Said) -> None:
    """Check that each published cause is one of ``truth``, and that the culprits are on ``host`` ("": no culprits)."""
    said = [(one["category"], tuple(one["culprit_ranks"])) for one in cause_incidents(collector.lines())]
    assert set(said) <= set(truth), said
    assert bool(said) is bool(truth)
    assert {place for one in collector.causes() for place in named(one)} == ({host} if host else set())


def lost(*ranks: int) -> list[Said]:
    """Return all true causes for a lost host. At first nobody may be named. Chance decides if its ranks had joined."""
    return [(category, who) for category in ("missing_rank", "stalled_collective") for who in (ranks, ())]


@pytest.mark.parametrize("cut", [False, True], ids=["killed", "lost"])
@pytest.mark.parametrize(("number", "ranks"), [(1, (2, 3)), (0, (0, 1))], ids=["any", "of the store"])
def test_a_host_that_is_killed_or_lost_is_named(site: Site, number: int, ranks: tuple[int, ...], cut: bool) -> None:
    collector, _ = site.train()
    site.fault(f"host n{number} is {'lost silently' if cut else 'killed'}")
    if cut:
        site.hosts[number].cut()
    site.hosts[number].kill()
    until(collector.causes)
    collector.settle()
    check(collector, f"n{number}", *lost(*ranks))


def test_of_a_healthy_job_whose_collector_is_cut_off_nothing_is_said(site: Site) -> None:
    collector, job = site.train(OTEL_FR_ON_PEER_FAILURE="abort")
    site.fault("none; the collector is cut off")
    site.watcher.cut()
    time.sleep(OUTAGE)
    site.watcher.mend()
    assert unheard(collector, RANKS * len(site.hosts)) < 10.0
    assert set(job.stop().values()) == {0}
    check(collector, "")


def unheard(collector: HostCollector, ranks: int) -> float:
    """Watch for `AFTER` seconds. Return how many had passed when a rank was last missing."""
    begun, latest = time.time(), 0.0
    while time.time() < begun + AFTER:
        time.sleep(0.5)
        if collector.heard() < ranks:
            latest = time.time() - begun
    return latest


def test_a_hang_that_began_while_the_collector_was_cut_off_is_named(site: Site) -> None:
    collector, job = site.train()
    site.watcher.cut()
    time.sleep(OUTAGE / 3)
    site.fault("rank 3 on n1 hangs; the collector is cut off for 24 s more")
    job.touch("hang-3")
    time.sleep(OUTAGE - OUTAGE / 3)
    site.watcher.mend()
    until(collector.causes)
    collector.settle()
    (job.folder / "hang-3").unlink()
    job.touch("go")
    assert set(job.stop().values()) == {0}
    check(collector, "n1", HANGS)


def test_two_hosts_that_do_not_reach_each_other_are_both_named(site: Site) -> None:
    collector, job = site.train()
    site.fault("n0 and n1 do not reach each other")
    site.hosts[0].cut_from(site.hosts[1])
    until(collector.causes)
    collector.settle()
    for one in [*collector.causes(), *from_files(site, job)]:
        assert "hosts n0 and n1 do not reach each other" in one["summary"]
    check(collector, "", ("stalled_collective", ()))


def test_a_slow_link_is_named_by_its_hosts_and_accuses_nobody(site: Site) -> None:
    """On the slow link a step takes 5 s. That is less than the stall time, so it is no fault."""
    collector, job = site.train(FLOATS="16000", OTEL_FR_STALL_SECONDS="20")
    time.sleep(LOOKED)  # there is no event to wait for
    assert collector.slow_links() == []
    site.fault("none; the link of n2 passes 256 kbit/s")
    site.hosts[2].slow()
    until(lambda: len(collector.slow_links()) == 2)
    found = collector.slow_links()
    assert [one["hosts"] for one in sorted(found, key=lambda one: one["hosts"])] == [["n0", "n2"], ["n1", "n2"]]
    assert all(one["seconds"] >= 0.1 for one in found)
    assert set(job.stop().values()) == {0}
    check(collector, "")


def from_files(site: Site, job: HostJob) -> list[dict[str, Any]]:
    """Return the causes in the files of all hosts, put into one folder."""
    together = site.folder / "together"
    together.mkdir()
    for host in site.hosts:
        for path in (job.folder / f"dumps-{host.name}").iterdir():
            shutil.copy(path, together)
    done = otel_fr("analyze", together, "--format", "json")
    found = cause_incidents(json.loads(done.stdout)["incidents"])
    assert found
    return found


def test_a_spare_takes_the_place_of_a_killed_host(site: Site) -> None:
    first, second, third = site.hosts
    collector, job = site.train([first, second], nodes="2", restarts=3)
    job.join(third)
    time.sleep(5)
    site.fault("host n1 is killed")
    second.kill()
    job.wait_steps(2 * RANKS)
    time.sleep(5)
    job.touch("stop")
    assert [job.agents[host.name].wait(PATIENCE) for host in (first, third)] == [0, 0]
    check(collector, "n1", *lost(2, 3))


def test_ranks_that_leave_as_a_host_is_lost_train_on_without_it(site: Site) -> None:
    """Nothing closes the connections to the lost host. Its peers wait until they learn that it has failed."""
    collector, job = site.train(nodes="2:3", restarts=2, OTEL_FR_ON_PEER_FAILURE="exit")
    site.fault("host n1 is lost silently")
    site.hosts[1].cut()
    site.hosts[1].kill()
    job.wait_steps(2 * RANKS)
    job.touch("stop")
    assert [job.agents[name].wait(PATIENCE) for name in ("n0", "n2")] == [0, 0]
    check(collector, "n1", *lost(2, 3))


def test_of_two_hosts_the_other_trains_on_alone(site: Site) -> None:
    """Half of the hosts are silent. The other host's kernel shows that not only the collector is cut off."""
    first, second, _ = site.hosts
    collector, job = site.train([first, second], nodes="1:2", restarts=2, OTEL_FR_ON_PEER_FAILURE="exit")
    site.fault("host n1 is lost silently")
    second.cut()
    second.kill()
    job.wait_steps(RANKS)
    job.touch("stop")
    assert job.agents["n0"].wait(PATIENCE) == 0
    check(collector, "n1", *lost(2, 3))


def test_of_a_host_that_joins_as_planned_nothing_is_said(site: Site) -> None:
    collector = grow(site)
    check(collector, "")


def test_who_is_accused_as_a_host_joins_by_torchruns_own_rendezvous_is_cleared(site: Site) -> None:
    """torchrun's rendezvous reports to nobody why it ends ranks. The first that it ends seem to leave the others."""
    collector = grow(site, rdzv="c10d", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")  # else ranks do not find their store
    assert {one["resolution"] for one in collector.causes() if one["culprit_ranks"]} <= {"replaced"}


def grow(site: Site, **options: Any) -> HostCollector:
    """Run a job on two hosts to a clean end. A third host joins it."""
    first, second, third = site.hosts
    collector, job = site.train([first, second], nodes="2:3", restarts=3, **options)
    site.fault("none; host n2 joins")
    job.join(third)
    job.wait_steps(3 * RANKS)
    time.sleep(5)
    assert set(job.stop().values()) == {0}
    return collector


def hangs_and_is_named(site: Site, collector: HostCollector, job: HostJob) -> None:
    site.fault("rank 3 on n1 hangs")
    job.touch("hang-3")
    until(collector.causes)
    collector.settle()
    job.touch("go")
    (job.folder / "hang-3").unlink()
    assert set(job.stop().values()) == {0}
    check(collector, "n1", HANGS)


def test_a_rank_that_hangs_on_another_host_is_named_with_torchruns_own_rendezvous(site: Site) -> None:
    hangs_and_is_named(site, *site.train(rdzv="c10d"))


def test_a_spare_takes_the_place_of_a_host_that_fails_its_check(site: Site) -> None:
    first, second, third = site.hosts
    for host in site.hosts:
        host.output("mkdir", "/tmp/data")
    checks = {"OTEL_FR_CHECKS": "paths", "OTEL_FR_CHECK_PATHS": "/tmp/data"}
    collector, job = site.train([first, second], nodes="2", restarts=3, **checks)
    job.join(third)
    time.sleep(5)
    second.output("rmdir", "/tmp/data")
    site.fault("rank 3 on n1 raises; then n1 fails its check")
    job.touch("raise-3")
    job.wait_steps(2 * RANKS)
    assert job.agents["n1"].wait(PATIENCE) == NODE_FAILED
    job.touch("stop")
    assert [job.agents[host.name].wait(PATIENCE) for host in (first, third)] == [0, 0]
    check(collector, "n1", ("rank_dead", (3,)))


@pytest.mark.parametrize("name", ["SIGSTOP", "SIGKILL"])
def test_ranks_on_other_hosts_do_not_wait_for_a_rank_that_has_failed(site: Site, name: str) -> None:
    collector, job = site.train(OTEL_FR_ON_PEER_FAILURE="abort")
    site.fault(f"rank 3 on n1 gets {name}")
    job.touch(f"{name}-3")
    assert 0 not in [job.agents[host].wait(PATIENCE) for host in ("n0", "n2")]
    assert time.time() - site.since < FREED
    collector.settle()
    check(collector, "n1", ("rank_dead", (3,)), ("rank_stuck", (3,)), HANGS)


def test_without_a_collector_the_files_of_all_hosts_name_the_rank(site: Site) -> None:
    """Each host judges only its own files. A host with waiting ranks names nobody in its log."""
    job = site.start(collector=None, OTEL_FR_ENABLED="1")
    site.fault("rank 3 on n1 hangs")
    job.touch("hang-3")
    until(lambda: all("this job hangs" in log.read_text() for log in site.logs.values()))
    found = from_files(site, job)
    site.causes = lambda: found
    assert [(one["category"], tuple(one["culprit_ranks"])) for one in found] == [HANGS]
    lines = {host: log.read_text() for host, log in site.logs.items()}
    assert {host for host, text in lines.items() if "this job hangs: missing_rank: rank 3 " in text} == {"n1"}


@needs_otelcol
def test_a_rank_that_hangs_behind_its_nodes_opentelemetry_collector_is_named(site: Site) -> None:
    hangs_and_is_named(site, *site.train_behind_node_collectors())


@needs_otelcol
@pytest.mark.parametrize("number", [1, None], ids=["one", "all"])
def test_of_a_healthy_job_whose_nodes_opentelemetry_collectors_are_cut_off_nothing_is_said_or_lost(
    site: Site, number: int | None
) -> None:
    collector, job = site.train_behind_node_collectors()
    hosts = site.hosts if number is None else [site.hosts[number]]
    site.fault(f"none; otel-fr is cut off from {', '.join(host.name for host in hosts)} for {NODE_OUTAGE:.0f} s")
    for host in hosts:
        host.cut_from(site.watcher)
    time.sleep(NODE_OUTAGE)
    for host in hosts:
        host.mend_to(site.watcher)
    assert unheard(collector, RANKS * len(site.hosts)) < 15.0
    assert set(job.stop().values()) == {0}
    spans = sum(step for step, *_ in job.steps().values())
    until(lambda: collector.metric("otel_fr_collector_items_received_total", signal="traces") >= spans)
    until(lambda: not collector.metric("otel_fr_collector_pending_calls"))  # all ranks' spans have come
    check(collector, "")
