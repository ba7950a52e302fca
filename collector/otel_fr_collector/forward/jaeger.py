"""Finds the page of a Jaeger among the backends, so that incidents link to their traces without an option."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urlsplit

from otel_fr_collector.incidents.links import Links
from otel_fr_collector.network.http_client import HttpClient, HttpError, Workers

_log = logging.getLogger(__name__)

PORT = 16686
"""Port of Jaeger's page, on the host that receives its telemetry (jaegertracing.io/docs, Getting Started)."""
TITLE = b"Jaeger UI"
ATTEMPTS, EVERY = 10, 30.0
"""Number of attempts to find the page, and seconds between them: Jaeger may start after the collector. They end,
because the backend may be something else."""
CONNECT_SECONDS, TOTAL_SECONDS = 1.0, 2.0


async def look_for_page(links: Links, backends: Sequence[str]) -> None:
    """Set the template of links to traces once a backend's host shows Jaeger's page."""
    worker = Workers(1, "otel-fr jaeger")
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(EVERY)
        page = await worker.run(lambda: find_page(backends, links.page))
        if page:
            links.trace = f"{page.replace('{', '{{').replace('}', '}}')}/trace/{{trace_id}}"
            _log.info("incidents link to their traces in the Jaeger at %s; --link trace=... sets another one", page)
            return


def find_page(backends: Iterable[str], own_page: str = "", port: int = PORT) -> str:
    """Return the base URL of the first Jaeger that answers, or "". Blocks for seconds.

    Args:
        own_page: URL of this collector's page. If a backend is on loopback, browsers reach its Jaeger by this host.
    """
    http = HttpClient(connect=CONNECT_SECONDS, total=TOTAL_SECONDS)
    for host in dict.fromkeys(host for url in backends for host in _hosts(url, own_page)):
        page = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        try:
            answer = http.request("GET", f"{page}/", {})
        except HttpError:
            continue
        if answer.status == 200 and TITLE in answer.body:
            return page
    return ""


def _hosts(backend: str, own_page: str) -> Iterator[str]:
    host = urlsplit(backend).hostname or ""
    own = urlsplit(own_page).hostname
    if own and _is_loopback(host):
        yield own
    yield host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
