"""Pairs of a job's hosts with long round-trip times, measured on the TCP connections of its ranks."""

from __future__ import annotations

import asyncio

from otel_fr.api_answers import SlowLink
from otel_fr.match import Rank
from otel_fr.match.facts import machines
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.snapshot import trips_of
from otel_fr_collector.web.rank_states import CHUNK

MAX_LINKS = 16
"""Pairs that are named, the slowest first."""


async def slow_links(run: Run) -> list[SlowLink]:
    """The slow links, from reports of ranks that have not ended. Yields to the event loop every `CHUNK` ranks."""
    seen: list[Rank] = []
    for count, state in enumerate(list(run.ranks.values()), 1):
        if count % CHUNK == 0:
            await asyncio.sleep(0)
        report = state.report
        if report is not None and (report.addresses or report.round_trips) and state.ended is None:
            seen.append(Rank(state.rank, place=state.place, addresses=report.addresses, round_trips=trips_of(report)))
    found = machines.slow_links(seen)[:MAX_LINKS]
    return [{"hosts": list(pair), "seconds": seconds} for pair, seconds in found]
