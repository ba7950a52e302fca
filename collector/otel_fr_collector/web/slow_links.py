"""Pairs of a job's hosts between which packets are long on the way, by the TCP connections of its ranks."""

from __future__ import annotations

import asyncio

from otel_fr.api_answers import SlowLink
from otel_fr.match import Place
from otel_fr.match.facts.machines import machines_by_address
from otel_fr.rank_report import RankReport
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.web.rank_states import CHUNK

MAX_LINKS = 16
"""Pairs that are named, the slowest first."""


async def slow_links(run: Run) -> list[SlowLink]:
    """Those that ranks report which run now. Yields every `CHUNK` ranks.

    Peers that are no host of the job, such as a server of files far away, are left out.
    """
    seen: list[tuple[Place, RankReport]] = []
    is_slow = False
    for count, state in enumerate(list(run.ranks.values()), 1):
        if count % CHUNK == 0:
            await asyncio.sleep(0)
        report = state.report
        if report is not None and (report.addresses or report.round_trips) and state.ended is None:
            seen.append((state.place, report))
            is_slow = is_slow or bool(report.round_trips)
    if not is_slow:
        return []
    machine_of = machines_by_address((place, report.addresses) for place, report in seen)
    longest: dict[tuple[str, str], float] = {}
    for place, report in seen:
        for one in report.round_trips:
            own, other = place.machine, machine_of.get(one.peer, "")
            if own and other and own != other:
                pair = min(own, other), max(own, other)
                longest[pair] = max(one.seconds, longest.get(pair, 0.0))
    found = sorted(longest.items(), key=lambda item: (-item[1], item[0]))
    return [{"hosts": list(pair), "seconds": seconds} for pair, seconds in found[:MAX_LINKS]]
