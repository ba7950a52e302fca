"""Hosts of a job between which packets are long on the way, as its page names them."""

from __future__ import annotations

import asyncio

from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.web.slow_links import MAX_LINKS

from otel_fr.api_answers import SlowLink
from otel_fr.match import Place
from otel_fr.rank_report import RankReport, ReportedRoundTrip
from tests.support.job_answers import job_answer
from tests.support.told import rank_in, run_in

Ranks = list[tuple[str, tuple[str, ...], dict[str, float]]]
"""Of each rank: host, addresses, round trips."""


def job(ranks: Ranks) -> Run:
    run = run_in(Runs())
    for rank, (host, addresses, trips) in enumerate(ranks):
        state = rank_in(run, rank)
        said = tuple([ReportedRoundTrip(peer, seconds) for peer, seconds in trips.items()])
        state.place = Place(host)
        state.report = RankReport(rank, 1, (), idle_s=0.1, addresses=addresses, round_trips=said)
    return run


def links(run: Run) -> list[SlowLink]:
    return asyncio.run(job_answer(run, IncidentBook(), 1.0, 1_000.0))["slow_links"]


def test_both_hosts_are_named_with_the_longest_round_trip() -> None:
    run = job(
        [
            ("n0", ("10.0.0.1",), {"10.0.0.3": 0.4}),
            ("n1", ("10.0.0.2",), {}),
            ("n1", (), {"10.0.0.3": 0.2}),
            ("n2", ("10.0.0.3",), {"10.0.0.1": 0.5}),
        ]
    )
    assert links(run) == [{"hosts": ["n0", "n2"], "seconds": 0.5}, {"hosts": ["n1", "n2"], "seconds": 0.2}]
    run.ranks[2].ended = 1.0
    assert links(run) == [{"hosts": ["n0", "n2"], "seconds": 0.5}]


def test_a_healthy_job_has_none() -> None:
    assert links(job([(f"n{host}", (f"10.0.0.{host}",), {}) for host in range(3)])) == []


def test_peers_that_are_no_host_of_the_job_or_not_known_which_are_left_out() -> None:
    far = {"198.51.100.7": 0.3}
    assert links(job([("n0", ("10.0.0.1",), far), ("n1", ("10.0.0.2",), {})])) == []
    shared: Ranks = [("n1", ("172.17.0.2",), {}), ("n2", ("172.17.0.2",), {})]
    assert links(job([("n0", ("10.0.0.1",), {"172.17.0.2": 0.3}), *shared])) == []
    assert links(job([("n0", ("10.0.0.1", "10.1.0.1"), {"10.1.0.1": 0.3})])) == [], "its own"


def test_the_slowest_are_named_if_there_are_many() -> None:
    others: Ranks = [(f"n{host}", (f"10.0.0.{host}",), {}) for host in range(1, 41)]
    found = links(job([("n0", ("10.0.0.0",), {f"10.0.0.{host}": host / 10 for host in range(1, 41)}), *others]))
    assert [one["hosts"] for one in found] == [["n0", f"n{host}"] for host in range(40, 40 - MAX_LINKS, -1)]
