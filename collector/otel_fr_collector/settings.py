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
from otel_fr_collector.network.address import Address, port_of
from otel_fr_collector.otlp.signals import METHODS
from otel_fr_collector.outlets.alertmanager import parse_label
from otel_fr_collector.receive.intake import MAX_REQUEST

ENV_PREFIX = "OTEL_FR_COLLECTOR_"

_Kind = tuple[Callable[[str], Any], str]
"""The parser of an option's text, and the placeholder of its value in the help; "": it is a switch."""


def _number(low: float, high: float = float("inf"), unit: str = "SECONDS") -> _Kind:
    def parse(text: str) -> float:
        value = float(text) if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else float("nan")
        if not low <= value <= high:
            wanted = f"from {low:g} to {high:g}" if high < float("inf") else f"of at least {low:g}"
            raise ValueError(f"{text!r} is not a number {wanted}")
        return value

    return parse, unit


def _choice(*values: str) -> _Kind:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"{text!r} is not one of {', '.join(values)}")
        return text

    return parse, f"{{{','.join(values)}}}"


def _signals(text: str) -> frozenset[str]:
    found = frozenset(re.split(r"[,\s]+", text.strip()))
    if not found <= METHODS.keys():
        raise ValueError(f"{text!r} is not a list of traces, metrics and logs")
    return found


def _base_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is not an http:// or https:// URL")  # its password or path may be a secret
    port_of(text)
    return text


def _backend(text: str) -> str:
    parse_backend(text)
    return text


def _address_or_off(text: str) -> Address | None:
    return None if text == "off" else Address.parse(text)


def _store(text: str) -> str | Path:
    return Path(text) if text.startswith(("/", ".")) else database_url(text)


def _size_from(least: int, why: str = "") -> _Kind:
    def parse(text: str) -> int:
        size = parse_size(text)
        if size < least:
            raise ValueError(f"{text!r} is less than {least >> 20}MiB{why}")
        return size

    return parse, "SIZE"


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
    kind: _Kind,
    text: str,
    default: str | None = None,
    *,
    repeat: bool = False,
    show: Callable[[str], str] = hide_password,
) -> Any:
    parse, metavar = kind
    value: Any = () if repeat else False if parse is bool else parse(default) if default is not None else None
    return field(default=value, metadata={"option": (section, parse, default, text, metavar, repeat, show)})


_IN, _OUT, _FORWARD, _STATE = "Input", "Incidents", "Forwarding", "State"
_SECURITY, _PROCESS = "Security", "Process"
_ADDRESS: _Kind = (Address.parse, "HOST:PORT")
_FILE: _Kind = (Path, "FILE")
_SIZE: _Kind = (parse_size, "SIZE")
_SWITCH: _Kind = (bool, "")
_URL: _Kind = (_base_url, "URL")


@dataclass(frozen=True)
class Settings:
    """The effective options. Each field is one option of the same name (``-`` for ``_``)."""

    grpc: Address = _option(
        _IN, _ADDRESS, "address for OTLP over gRPC and control streams; port 0: any free port", "127.0.0.1:4317"
    )
    otlp_http: Address | None = _option(
        _IN,
        (_address_or_off, "HOST:PORT"),
        "address for OTLP over HTTP (/v1/traces, /v1/metrics, /v1/logs), or off; "
        "default: port 4318 on the host of --grpc, or any free port if --grpc has port 0",
    )
    http: Address = _option(_IN, _ADDRESS, "address for the page, the API, /metrics and /healthz", "127.0.0.1:8080")
    max_queue_size: int = _option(
        _IN,
        _size_from(2 * MAX_REQUEST, ", twice the size that a request may have"),
        "total size of requests in flight; one client address may have half of it; above the limit, clients"
        " retry later",
        "64MiB",
    )
    job_memory: int = _option(
        _IN,
        _size_from(JOB_MEMORY),
        "memory for what jobs send; more than 30,000 ranks need more than the default, 100,000 need 768MiB",
        f"{JOB_MEMORY >> 20}MiB",
    )

    incidents: Path | None = _option(_OUT, _FILE, "append each incident change as a line of JSON to this file")
    quiet: bool = _option(_OUT, _SWITCH, "do not print incidents; log one line for each change")
    alertmanager: tuple[str, ...] = _option(
        _OUT, _URL, "post incidents to this Alertmanager (v2 API); repeat for each replica", repeat=True
    )
    alert_label: tuple[tuple[str, str], ...] = _option(
        _OUT, (parse_label, "NAME=VALUE"), "add this label to every alert; repeatable", repeat=True, show="=".join
    )
    webhook: tuple[str, ...] = _option(
        _OUT, _URL, "post each incident change as JSON to this URL; repeatable", repeat=True, show=_hide_path
    )
    webhook_secret_file: Path | None = _option(_OUT, _FILE, "file with the key that signs webhook posts")
    grafana: str | None = _option(_OUT, _URL, "annotate incidents in this Grafana")
    grafana_token_file: Path | None = _option(_OUT, _FILE, "file with Grafana's service-account token")
    alert_after: float = _option(
        _OUT,
        _number(0, 86_400),
        "how long a wait must last before it is posted to --alertmanager, --webhook and --grafana (a late rank"
        " may still join); deaths, mismatches, deadlocks and passed limits are posted at once",
        "30",
    )
    external_url: str | None = _option(_OUT, _URL, "URL of this collector's page, as browsers reach it")
    link: tuple[tuple[str, str], ...] = _option(
        _OUT,
        (parse_link, "NAME=TEMPLATE"),
        "link to show with incidents; NAME is runbook, trace or dashboard; repeatable; fields of the template: "
        + ", ".join(f"{{{name}}}" for name in FIELDS),
        repeat=True,
        show="=".join,
    )
    straggler_seconds: float = _option(
        _OUT,
        _number(0.001, 3600),
        "a rank is late in a block of 0.4 s if it arrives this much after half of its group",
        "0.05",
    )

    forward: tuple[str, ...] = _option(
        _FORWARD,
        (_backend, "URL"),
        "forward telemetry to this OTLP backend; repeatable: grpc://HOST:4317 or http://HOST:4317 (gRPC),"
        " http://HOST:4318 or any http(s) URL with a path (http/protobuf); https and grpcs use TLS",
        repeat=True,
    )
    forward_mode: str = _option(
        _FORWARD, _choice("all", "incidents"), "traces to forward: all, or only the traces of incidents", "all"
    )
    forward_signals: frozenset[str] = _option(
        _FORWARD, (_signals, "LIST"), "signals to forward, separated by commas: traces, metrics, logs", "traces"
    )
    forward_headers: Path | None = _option(
        _FORWARD, _FILE, "file of request headers for backends; each line: URL NAME: VALUE"
    )
    forward_ca: Path | None = _option(_FORWARD, _FILE, "CA certificates to verify backends (PEM)")
    forward_cert: Path | None = _option(_FORWARD, _FILE, "client certificate for backends (PEM)")
    forward_key: Path | None = _option(_FORWARD, _FILE, "private key of --forward-cert (PEM)")
    forward_queue_size: int = _option(
        _FORWARD, _SIZE, "queue capacity per backend, in memory and under --data", "256MiB"
    )

    data: Path | None = _option(_STATE, (Path, "DIR"), "folder that keeps incidents and forward queues across restarts")
    store: str | Path | None = _option(
        _STATE,
        (_store, "URL"),
        "keep incidents in this PostgreSQL database instead of under --data; several collectors may share it;"
        " postgresql://USER@HOST:PORT/DATABASE, or a file with that URL (its path begins with / or .)",
    )
    retention_days: float = _option(_STATE, _number(0.01, unit="DAYS"), "days to keep resolved incidents", "90")
    retention_size: int = _option(
        _STATE,
        _SIZE,
        "size limit for incidents under --data or in --store; above it, the oldest resolved ones are dropped",
        "256MiB",
    )

    tls_cert: Path | None = _option(_SECURITY, _FILE, "certificate chain for all ports (PEM); turns on TLS")
    tls_key: Path | None = _option(_SECURITY, _FILE, "private key of --tls-cert (PEM)")
    tls_client_ca: Path | None = _option(
        _SECURITY, _FILE, "require a client certificate signed by one of these CAs (PEM), on all ports"
    )
    tokens: Path | None = _option(
        _SECURITY, _FILE, "require a bearer token from this file; each line: TOKEN ACCESS JOB-PREFIX"
    )

    stop_seconds: float = _option(
        _PROCESS, _number(0.1, 3600), "longest time from SIGTERM, SIGINT or SIGHUP to exit", "10"
    )
    log_format: str = _option(_PROCESS, _choice("text", "json"), "format of the log on standard error", "text")
    log_level: str = _option(_PROCESS, _choice("debug", "info", "warning", "error"), "lowest level to log", "warning")

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
