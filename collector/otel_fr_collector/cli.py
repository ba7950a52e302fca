"""``otel-fr collector``: receive the ranks' telemetry and report incidents live."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from urllib.parse import urlsplit

from otel_fr_collector.alertmanager import Alertmanager
from otel_fr_collector.forward import Forwarder, parse_target
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.outlets import IncidentsFile, Terminal
from otel_fr_collector.server import Address, CollectorServer
from otel_fr_collector.service import Outlets, Service


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
        help="where to serve /metrics, /healthz and /api/v1/incidents (default 127.0.0.1:8080)",
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
    parser.add_argument("--quiet", action="store_true", help="print no incidents")


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
    outlets = Outlets(
        terminal=Terminal(None if args.quiet else sys.stdout),
        file=IncidentsFile(args.incidents, metrics) if args.incidents is not None else None,
        alerts=Alertmanager(args.alertmanager, metrics) if args.alertmanager else None,
        forward=Forwarder(args.forward, metrics) if args.forward else None,
    )
    server = CollectorServer(Service(metrics, outlets), outlets, args.grpc, args.http)
    await server.start()
    print(
        f"otel-fr collector: OTLP/gRPC on {server.grpc_address}, HTTP on http://{server.http_address}",
        file=sys.stderr,
        flush=True,
    )
    await server.serve()
    return 0


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
