"""``otel-fr collector``: receive the ranks' telemetry and report incidents live."""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from otel_fr_collector.alertmanager import Alertmanager, parse_label
from otel_fr_collector.forward import Forwarder, parse_target
from otel_fr_collector.grafana import Grafana
from otel_fr_collector.links import FIELDS, Links, check_template
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.outlets import IncidentsFile, LogLines, Outlet, Terminal
from otel_fr_collector.server import Address, CollectorServer
from otel_fr_collector.service import Outlets, Service
from otel_fr_collector.store import Retention, Store
from otel_fr_collector.webhook import Webhook, read_secret

_T = TypeVar("_T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the collector's options to a parser."""
    parser.add_argument(
        "--grpc",
        metavar="HOST:PORT",
        type=_address,
        default=Address("127.0.0.1", 4317),
        help="where to take OTLP over gRPC (default 127.0.0.1:4317; port 0: any free one)",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        type=_address,
        default=Address("127.0.0.1", 8080),
        help="where to serve the page, the API, /metrics and /healthz (default 127.0.0.1:8080)",
    )
    parser.add_argument(
        "--incidents", metavar="FILE", type=Path, help="append each state of each incident as a JSON line"
    )
    parser.add_argument(
        "--alertmanager",
        metavar="URL",
        type=_base_url,
        action="append",
        default=[],
        help="post incidents to this Alertmanager (v2 API); once for each replica",
    )
    parser.add_argument(
        "--forward", metavar="URL", type=_target, help="send all traces on, unchanged, to this OTLP/gRPC backend"
    )
    parser.add_argument("--quiet", action="store_true", help="print no incidents; log one line for each change")
    parser.add_argument(
        "--data", metavar="DIR", type=Path, help="keep incidents in this folder, so that a restart goes on with them"
    )
    parser.add_argument(
        "--retention-days",
        metavar="DAYS",
        type=_days,
        default=90.0,
        help="keep resolved incidents so long (default 90)",
    )
    parser.add_argument(
        "--retention-size",
        metavar="SIZE",
        type=_size,
        default=_size("256MiB"),
        help="drop the oldest resolved incidents when the file in --data is larger (default 256MiB)",
    )
    parser.add_argument(
        "--webhook", metavar="URL", type=_base_url, action="append", default=[], help="post each change here as JSON"
    )
    parser.add_argument(
        "--webhook-secret-file", metavar="FILE", type=Path, help="sign webhook posts with the secret in this file"
    )
    parser.add_argument(
        "--grafana", metavar="URL", type=_base_url, help="mark incidents as annotations in this Grafana"
    )
    parser.add_argument(
        "--grafana-token-file", metavar="FILE", type=Path, help="the token of a Grafana service account"
    )
    parser.add_argument(
        "--alert-label",
        metavar="NAME=VALUE",
        type=_told(parse_label),
        action="append",
        default=[],
        help="a further label of every alert (repeatable)",
    )
    parser.add_argument(
        "--external-url", metavar="URL", type=_base_url, help="where browsers reach this collector's page"
    )
    for name, what in (("runbook", "your runbook"), ("trace", "a trace"), ("dashboard", "a dashboard")):
        parser.add_argument(
            f"--{name}-url",
            metavar="TEMPLATE",
            type=_told(check_template),
            help=f"link to {what}, shown with incidents; may hold " + ", ".join(f"{{{field}}}" for field in FIELDS),
        )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes.

    Returns:
        the process's exit status: 0 after a signal, 2 if an address or the incidents file cannot be used.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    try:
        return asyncio.run(_serve(args))
    except OSError as error:
        print(f"otel-fr collector: {error}", file=sys.stderr)
        return 2


async def _serve(args: argparse.Namespace) -> int:
    metrics = Metrics()
    page = (args.external_url or "").rstrip("/")
    links = Links(page, args.runbook_url or "", args.trace_url or "", args.dashboard_url or "")
    retention = Retention(args.retention_days * 86_400.0, args.retention_size)
    store = Store(args.data, metrics, retention) if args.data is not None else None
    others = _others(args, metrics, links, store)
    outlets = Outlets(
        terminal=Terminal(None if args.quiet else sys.stdout),
        file=IncidentsFile(args.incidents, metrics) if args.incidents is not None else None,
        forward=Forwarder(args.forward, metrics) if args.forward else None,
        others=others,
    )
    service = Service(metrics, outlets, store=store, retention=retention, links=links)
    server = CollectorServer(service, outlets, args.grpc, args.http)
    await server.start()
    print(
        f"otel-fr collector: OTLP/gRPC on {server.grpc_address}, HTTP on http://{server.http_address}",
        file=sys.stderr,
        flush=True,
    )
    await server.serve()
    return 0


def _others(args: argparse.Namespace, metrics: Metrics, links: Links, store: Store | None) -> list[Outlet]:
    """Who else is told of incidents.

    Raises:
        OSError: a file with a secret cannot be read or used.
    """
    others: list[Outlet] = [LogLines()] if args.quiet else []
    if args.alertmanager:
        others.append(Alertmanager(args.alertmanager, metrics, links=links, labels=dict(args.alert_label)))
    if args.webhook_secret_file is not None and not args.webhook:
        raise OSError("--webhook-secret-file is of no use without --webhook")
    secret = None
    if args.webhook_secret_file is not None:
        try:
            secret = read_secret(args.webhook_secret_file.read_text())
        except ValueError as error:
            raise OSError(f"{args.webhook_secret_file}: {error}") from error
    others += [Webhook(url, metrics, secret=secret, links=links, store=store) for url in dict.fromkeys(args.webhook)]
    if args.grafana is not None:
        token = args.grafana_token_file.read_text().strip() if args.grafana_token_file is not None else ""
        others.append(Grafana(args.grafana, token, metrics, links=links, store=store))
    return others


def _told(read: Callable[[str], _T]) -> Callable[[str], _T]:
    """A reader of an option whose ValueError is shown as it is."""

    def checked(text: str) -> _T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days < 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days above 0")
    return days


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9})(KiB|MiB|GiB)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 512MiB or 2GiB")
    return int(found[1]) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[found[2]]


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _target(text: str) -> str:
    try:
        parse_target(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _base_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not an http:// or https:// URL")
    return text
