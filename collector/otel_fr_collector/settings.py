"""The collector's options: one list, from which flags, variables, the TOML file and the reference are made."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from otel_fr.redaction import hide_password
from otel_fr.sizes import parse_size
from otel_fr_collector.database_url import database_url
from otel_fr_collector.forward.backends import parse_backend
from otel_fr_collector.given_files import read_text
from otel_fr_collector.incidents.links import FIELDS, parse_link
from otel_fr_collector.jobs.usage import JOB_MEMORY
from otel_fr_collector.network.address import Address
from otel_fr_collector.outlets.alertmanager import parse_label
from otel_fr_collector.receive.intake import MAX_REQUEST

ENV_PREFIX = "OTEL_FR_COLLECTOR_"


def _number(low: float, high: float = float("inf")) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text) if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else float("nan")
        if not low <= value <= high:
            wanted = f"from {low:g} to {high:g}" if high < float("inf") else f"of at least {low:g}"
            raise ValueError(f"{text!r} is not a number {wanted}")
        return value

    return parse


def _choice(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"{text!r} is not one of {', '.join(values)}")
        return text

    return parse


def _signals(text: str) -> frozenset[str]:
    found = frozenset(re.split(r"[,\s]+", text.strip()))
    if not found <= {"traces", "metrics", "logs"}:
        raise ValueError(f"{text!r} is not a list of traces, metrics and logs")
    return found


def _base_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not an http:// or https:// URL")
    return text


def _backend(text: str) -> str:
    parse_backend(text)
    return text


def _address_or_off(text: str) -> Address | None:
    return None if text == "off" else Address.parse(text)


def _store(text: str) -> str | Path:
    return Path(text) if text.startswith(("/", ".")) else database_url(text)


def _job_memory(text: str) -> int:
    size = parse_size(text)
    if size < JOB_MEMORY:
        raise ValueError(f"{text!r} is less than {JOB_MEMORY >> 20}MiB")
    return size


def _queue_size(text: str) -> int:
    size = parse_size(text)
    if size < 2 * MAX_REQUEST:
        raise ValueError(f"{text!r} is less than {2 * MAX_REQUEST >> 20}MiB, twice the size that a request may have")
    return size


def _hide_path(text: str) -> str:
    """A webhook's URL with scheme and host only: its path is a secret."""
    parts = urlsplit(text)
    return f"{parts.scheme}://{parts.hostname}/..."


@dataclass(frozen=True)
class Option:
    """One option. ``default``: the text that a user would write; None: not set."""

    name: str
    section: str
    parse: Callable[[str], Any]
    default: str | None
    text: str
    metavar: str
    repeat: bool
    show: Callable[[str], str]

    @property
    def is_switch(self) -> bool:
        return self.parse is bool

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper().replace("-", "_")


def _option(
    section: str,
    parse: Callable[[str], Any],
    *,
    text: str,
    default: str | None = None,
    metavar: str = "",
    repeat: bool = False,
    show: Callable[[str], str] = hide_password,
) -> Any:
    value: Any = () if repeat else False if parse is bool else parse(default) if default is not None else None
    return field(default=value, metadata={"option": (section, parse, default, text, metavar, repeat, show)})


_IN, _OUT, _FORWARD, _STATE = "Input", "Incidents", "Forwarding", "State"
_SECURITY, _PROCESS = "Security", "Process"


@dataclass(frozen=True)
class Settings:
    """The effective options. Each field is one option of the same name (``-`` for ``_``)."""

    grpc: Address = _option(
        _IN,
        Address.parse,
        default="127.0.0.1:4317",
        text="address for OTLP over gRPC and control streams; port 0: any free port",
        metavar="HOST:PORT",
    )
    otlp_http: Address | None = _option(
        _IN,
        _address_or_off,
        text="address for OTLP over HTTP (/v1/traces, /v1/metrics, /v1/logs), or off; "
        "default: port 4318 on the host of --grpc, or any free port if --grpc has port 0",
        metavar="HOST:PORT",
    )
    http: Address = _option(
        _IN,
        Address.parse,
        default="127.0.0.1:8080",
        text="address for the page, the API, /metrics and /healthz",
        metavar="HOST:PORT",
    )
    max_queue_size: int = _option(
        _IN,
        _queue_size,
        default="64MiB",
        text="total size of requests in flight; one client address may have half of it; above the limit, clients"
        " retry later",
        metavar="SIZE",
    )
    job_memory: int = _option(
        _IN,
        _job_memory,
        default=f"{JOB_MEMORY >> 20}MiB",
        text="memory for what jobs send; more than 30,000 ranks need more than the default, 100,000 need 768MiB",
        metavar="SIZE",
    )

    incidents: Path | None = _option(
        _OUT, Path, text="append each incident change as a line of JSON to this file", metavar="FILE"
    )
    quiet: bool = _option(_OUT, bool, text="do not print incidents; log one line for each change")
    alertmanager: tuple[str, ...] = _option(
        _OUT,
        _base_url,
        text="post incidents to this Alertmanager (v2 API); repeat for each replica",
        metavar="URL",
        repeat=True,
    )
    alert_label: tuple[tuple[str, str], ...] = _option(
        _OUT,
        parse_label,
        text="add this label to every alert; repeatable",
        metavar="NAME=VALUE",
        repeat=True,
        show="=".join,
    )
    webhook: tuple[str, ...] = _option(
        _OUT,
        _base_url,
        text="post each incident change as JSON to this URL; repeatable",
        metavar="URL",
        repeat=True,
        show=_hide_path,
    )
    webhook_secret_file: Path | None = _option(
        _OUT, Path, text="file with the key that signs webhook posts", metavar="FILE"
    )
    grafana: str | None = _option(_OUT, _base_url, text="annotate incidents in this Grafana", metavar="URL")
    grafana_token_file: Path | None = _option(
        _OUT, Path, text="file with Grafana's service-account token", metavar="FILE"
    )
    alert_after: float = _option(
        _OUT,
        _number(0, 86_400),
        default="30",
        text="how long a wait must last before it is posted to --alertmanager, --webhook and --grafana (a late rank"
        " may still join); deaths, mismatches, deadlocks and passed limits are posted at once",
        metavar="SECONDS",
    )
    external_url: str | None = _option(
        _OUT, _base_url, text="URL of this collector's page, as browsers reach it", metavar="URL"
    )
    link: tuple[tuple[str, str], ...] = _option(
        _OUT,
        parse_link,
        text="link to show with incidents; NAME is runbook, trace or dashboard; repeatable; fields of the template: "
        + ", ".join(f"{{{name}}}" for name in FIELDS),
        metavar="NAME=TEMPLATE",
        repeat=True,
        show="=".join,
    )
    straggler_seconds: float = _option(
        _OUT,
        _number(0.001, 3600),
        default="0.05",
        text="a rank is late in a block of 0.4 s if it arrives this much after half of its group",
        metavar="SECONDS",
    )

    forward: tuple[str, ...] = _option(
        _FORWARD,
        _backend,
        text="forward telemetry to this OTLP backend; repeatable: grpc://HOST:4317 or http://HOST:4317 (gRPC),"
        " http://HOST:4318 or any http(s) URL with a path (http/protobuf); https and grpcs use TLS",
        metavar="URL",
        repeat=True,
    )
    forward_mode: str = _option(
        _FORWARD,
        _choice("all", "incidents"),
        default="all",
        text="traces to forward: all, or only the traces of incidents",
        metavar="{all,incidents}",
    )
    forward_signals: frozenset[str] = _option(
        _FORWARD,
        _signals,
        default="traces",
        text="signals to forward, separated by commas: traces, metrics, logs",
        metavar="LIST",
    )
    forward_headers: Path | None = _option(
        _FORWARD, Path, text="file of request headers for backends; each line: URL NAME: VALUE", metavar="FILE"
    )
    forward_ca: Path | None = _option(_FORWARD, Path, text="CA certificates to verify backends (PEM)", metavar="FILE")
    forward_cert: Path | None = _option(_FORWARD, Path, text="client certificate for backends (PEM)", metavar="FILE")
    forward_key: Path | None = _option(_FORWARD, Path, text="private key of --forward-cert (PEM)", metavar="FILE")
    forward_queue_size: int = _option(
        _FORWARD,
        parse_size,
        default="256MiB",
        text="queue capacity per backend, in memory and under --data",
        metavar="SIZE",
    )

    data: Path | None = _option(
        _STATE, Path, text="folder that keeps incidents and forward queues across restarts", metavar="DIR"
    )
    store: str | Path | None = _option(
        _STATE,
        _store,
        text="keep incidents in this PostgreSQL database instead of under --data; several collectors may share it;"
        " postgresql://USER@HOST:PORT/DATABASE, or a file with that URL (its path begins with / or .)",
        metavar="URL",
    )
    retention_days: float = _option(
        _STATE,
        _number(0.01),
        default="90",
        text="days to keep resolved incidents",
        metavar="DAYS",
    )
    retention_size: int = _option(
        _STATE,
        parse_size,
        default="256MiB",
        text="size limit for incidents under --data or in --store; above it, the oldest resolved ones are dropped",
        metavar="SIZE",
    )

    tls_cert: Path | None = _option(
        _SECURITY, Path, text="certificate chain for all ports (PEM); turns on TLS", metavar="FILE"
    )
    tls_key: Path | None = _option(_SECURITY, Path, text="private key of --tls-cert (PEM)", metavar="FILE")
    tls_client_ca: Path | None = _option(
        _SECURITY,
        Path,
        text="require a client certificate signed by one of these CAs (PEM), on all ports",
        metavar="FILE",
    )
    tokens: Path | None = _option(
        _SECURITY,
        Path,
        text="require a bearer token from this file; each line: TOKEN ACCESS JOB-PREFIX",
        metavar="FILE",
    )

    stop_seconds: float = _option(
        _PROCESS,
        _number(0.1, 3600),
        default="10",
        text="longest time from SIGTERM or SIGINT to exit",
        metavar="SECONDS",
    )
    log_format: str = _option(
        _PROCESS,
        _choice("text", "json"),
        default="text",
        text="format of the log on standard error",
        metavar="{text,json}",
    )
    log_level: str = _option(
        _PROCESS,
        _choice("debug", "info", "warning", "error"),
        default="warning",
        text="lowest level to log",
        metavar="{debug,info,warning,error}",
    )

    def store_url(self) -> str | None:
        """The URL of the database; None: there is none.

        Raises:
            OSError, ValueError: the file with it cannot be read, or has other content.
        """
        if not isinstance(self.store, Path):
            return self.store
        lines = read_text(self.store).strip().splitlines()
        if len(lines) != 1:
            raise ValueError(
                f"it must be one line with a postgresql:// URL and nothing else, but has {len(lines)} lines"
            )
        return database_url(lines[0])

    @property
    def otlp_http_address(self) -> Address | None:
        """The address for OTLP over HTTP; its default follows ``grpc``."""
        if "otlp_http" in self.given:
            return self.otlp_http
        return Address(self.grpc.host, 4318 if self.grpc.port else 0)

    given: frozenset[str] = frozenset()
    """The fields that were set."""


OPTIONS: tuple[Option, ...] = tuple(
    Option(one.name.replace("_", "-"), *one.metadata["option"])
    for one in dataclasses.fields(Settings)
    if "option" in one.metadata
)


def reference() -> str:
    """The options as the Markdown tables of docs/reference/options.md."""
    lines: list[str] = []
    section = ""
    for option in OPTIONS:
        if option.section != section:
            section = option.section
            lines += ["", f"### {section}", "", "| option | default | what it does |", "|---|---|---|"]
        name = f"--{option.name} {option.metavar}".rstrip()
        lines.append(f"| `{name}` | {option.default or ''} | {option.text} |")
    return "\n".join(lines[1:]) + "\n"
