"""The API's answer about one job, without a server."""

from __future__ import annotations

from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.web.job_detail import detail, picture

from otel_fr.api_answers import JobDetail


async def job_answer(run: Run, book: IncidentBook, now: float, wall: float, *asked: int) -> JobDetail:
    """Return the API's answer. ``now``, ``wall``: monotonic and Unix time. ``asked``: ranks that the request names."""
    return await detail(run, await picture(run, book, now, wall), now, asked)
