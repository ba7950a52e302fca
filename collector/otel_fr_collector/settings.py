"""The collector's options: one list, from which flags, variables, the TOML file and the reference are made."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from otel_fr_collector.forward.backends import parse_backend
from otel_fr_collector.incidents.links import FIELDS, check_template
from otel_fr_collector.network.address import Address
from otel_fr_collector.outlets.alertmanager import parse_label
from otel_fr_collector.redaction import hide_password

ENV_PREFIX = "OTEL_FR_COLLECTOR_"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(text: str) -> int:
    """Bytes of ``1048576``, ``64MiB``, ``1.5 GB``.

    Raises:
        ValueError: it is not a size above 0.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in _UNITS or (size := int(float(found[1]) * _UNITS[found[2].upper()])) < 1:
        raise ValueError(f"{text!r} is not a size such as 64MiB or 2GB")
    return size


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


def _hide_path(text: str) -> str:
    """A webhook's URL with scheme and host only: its path is a secret."""
    parts = urlsplit(text)
    return f"{parts.scheme}://{parts.hostname}/..."


@dataclass(frozen=True)
class Option:
    """One option. ``default`` is text as a user would give it; None: not set."""

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
    default: str | None,
    text: str,
    metavar: str = "",
    repeat: bool = False,
    show: Callable[[str], str] = hide_password,
) -> Any:
    value: Any = () if repeat else False if parse is bool else parse(default) if default is not None else None
    return field(default=value, metadata={"option": (section, parse, default, text, metavar, repeat, show)})


_IN, _OUT, _FORWARD, _STATE = "Input", "Incidents", "Forwarding", "State"
_SECURITY, _LIMITS, _PROCESS = "Security", "Limits", "Process"


def _link(what: str) -> Any:
    fields = ", ".join(f"{{{name}}}" for name in FIELDS)
    return _option(
        _OUT, check_template, None, f"link to {what}, shown with incidents; may contain {fields}", "TEMPLATE"
    )


@dataclass(frozen=True)
class Settings:
    """The effective options. Each field is one option of the same name (``-`` for ``_``)."""

    grpc: Address = _option(
        _IN, Address.parse, "127.0.0.1:4317", "where to receive OTLP over gRPC; port 0: any free one", "HOST:PORT"
    )
    otlp_http: Address | None = _option(
        _IN,
        _address_or_off,
        None,
        "where to receive OTLP over HTTP (/v1/traces, /v1/metrics, /v1/logs), or off; "
        "default: port 4318 on the host of --grpc, any free port if --grpc has port 0",
        "HOST:PORT",
    )
    http: Address = _option(
        _IN, Address.parse, "127.0.0.1:8080", "where to serve /metrics, /healthz, the API and the page", "HOST:PORT"
    )

    incidents: Path | None = _option(
        _OUT, Path, None, "append each incident, whenever it changes, as a JSON line", "FILE"
    )
    quiet: bool = _option(_OUT, bool, None, "print no incidents; log one line for each change")
    alertmanager: tuple[str, ...] = _option(
        _OUT, _base_url, None, "post incidents to this Alertmanager (v2 API); once for each replica", "URL", repeat=True
    )
    alert_label: tuple[tuple[str, str], ...] = _option(
        _OUT, parse_label, None, "an additional label of every alert", "NAME=VALUE", repeat=True, show="=".join
    )
    webhook: tuple[str, ...] = _option(
        _OUT, _base_url, None, "post each change of an incident to this URL as JSON", "URL", True, _hide_path
    )
    webhook_secret_file: Path | None = _option(_OUT, Path, None, "sign webhook posts with the key in this file", "FILE")
    grafana: str | None = _option(_OUT, _base_url, None, "annotate incidents in this Grafana", "URL")
    grafana_token_file: Path | None = _option(_OUT, Path, None, "file with a Grafana service account token", "FILE")
    external_url: str | None = _option(_OUT, _base_url, None, "where browsers reach this collector's page", "URL")
    runbook_url: str | None = _link("your runbook")
    trace_url: str | None = _link("a trace")
    dashboard_url: str | None = _link("a dashboard")

    forward: tuple[str, ...] = _option(
        _FORWARD,
        _backend,
        None,
        "forward telemetry to this OTLP backend, once for each: grpc://HOST:4317 or http://HOST:4317 (gRPC),"
        " http://HOST:4318 or any http(s) URL with a path (http/protobuf); https and grpcs use TLS",
        "URL",
        repeat=True,
    )
    forward_mode: str = _option(
        _FORWARD,
        _choice("all", "incidents", "sampled"),
        "all",
        "traces to forward: all, bytes unchanged; only those of incidents; or a sample and those of incidents",
        "MODE",
    )
    forward_ratio: float = _option(
        _FORWARD, _number(0, 1), "0.01", "share of the trace ids that --forward-mode sampled forwards", "RATIO"
    )
    forward_signals: frozenset[str] = _option(
        _FORWARD, _signals, "traces", "what to forward: traces, metrics, logs, separated by commas", "LIST"
    )
    forward_headers: Path | None = _option(
        _FORWARD, Path, None, "file of headers for backends, one per line: URL NAME: VALUE", "FILE"
    )
    forward_ca: Path | None = _option(_FORWARD, Path, None, "CA certificates to verify backends with (PEM)", "FILE")
    forward_cert: Path | None = _option(_FORWARD, Path, None, "client certificate to present to backends (PEM)", "FILE")
    forward_key: Path | None = _option(_FORWARD, Path, None, "key of --forward-cert (PEM)", "FILE")
    forward_queue_size: int | None = _option(
        _FORWARD,
        parse_size,
        None,
        "bytes queued for a backend that does not accept them; default 1GiB, without --data (so in memory) 256MiB",
        "SIZE",
    )
    forward_max_age: float = _option(
        _FORWARD, _number(0.01), "24", "hours after which a queued request is dropped", "HOURS"
    )

    data: Path | None = _option(_STATE, Path, None, "folder for what is kept over a restart", "DIR")
    retention_days: float = _option(_STATE, _number(0.01), "90", "days to keep resolved incidents under --data", "DAYS")
    retention_size: int = _option(_STATE, parse_size, "256MiB", "largest size of the incidents under --data", "SIZE")

    tls_cert: Path | None = _option(_SECURITY, Path, None, "certificate chain of all ports (PEM); turns TLS on", "FILE")
    tls_key: Path | None = _option(_SECURITY, Path, None, "key of --tls-cert (PEM)", "FILE")
    tls_client_ca: Path | None = _option(
        _SECURITY, Path, None, "require a client certificate signed by one of these CAs (PEM), on all ports", "FILE"
    )
    tokens: Path | None = _option(
        _SECURITY, Path, None, "require a bearer token of this file: lines of TOKEN RIGHTS JOB-PREFIX", "FILE"
    )

    max_request_size: int = _option(
        _LIMITS, parse_size, "64MiB", "largest OTLP request, before and after decompression", "SIZE"
    )
    max_queue_size: int = _option(
        _LIMITS, parse_size, "256MiB", "bytes of requests in flight; above it clients are told to retry later", "SIZE"
    )
    client_queue_size: int = _option(_LIMITS, parse_size, "128MiB", "the same for one client's address", "SIZE")
    client_rate: float = _option(
        _LIMITS, _number(0), "0", "OTLP requests a second of one client's address; 0: no limit", "NUMBER"
    )
    client_connections: int = _option(
        _LIMITS,
        lambda text: int(_number(1)(text)),
        "16384",
        "connections (HTTP) and calls in progress (gRPC) of one client's address",
        "NUMBER",
    )
    grpc_max_connection_age: float = _option(
        _LIMITS, _number(1), "3600", "seconds after which gRPC clients are asked to reconnect", "SECONDS"
    )

    stop_seconds: float = _option(
        _PROCESS, _number(0.1, 3600), "10", "longest time from a signal to the end of the process", "SECONDS"
    )
    log_format: str = _option(_PROCESS, _choice("text", "json"), "text", "of the log on standard error", "FORMAT")
    log_level: str = _option(
        _PROCESS, _choice("debug", "info", "warning", "error"), "warning", "lowest level that is logged", "LEVEL"
    )

    @property
    def otlp_http_address(self) -> Address | None:
        """Where OTLP over HTTP is received; the default follows ``grpc``."""
        if "otlp_http" in self.given:
            return self.otlp_http
        return Address(self.grpc.host, 4318 if self.grpc.port else 0)

    @property
    def forward_queue_bytes(self) -> int:
        """The bound of one backend's queue; the default depends on where it is."""
        if self.forward_queue_size is not None:
            return self.forward_queue_size
        return parse_size("256MiB" if self.data is None else "1GiB")

    given: frozenset[str] = frozenset()
    """The fields that were set, by whatever source."""


OPTIONS: tuple[Option, ...] = tuple(
    Option(one.name.replace("_", "-"), *one.metadata["option"])
    for one in dataclasses.fields(Settings)
    if "option" in one.metadata
)


def reference() -> str:
    """The options as the Markdown tables of docs/collector.md."""
    lines: list[str] = []
    section = ""
    for option in OPTIONS:
        if option.section != section:
            section = option.section
            lines += ["", f"### {section}", "", "| option | default | what it does |", "|---|---|---|"]
        name = f"--{option.name} {option.metavar}".rstrip()
        lines.append(f"| `{name}` | {option.default or ''} | {option.text} |")
    return "\n".join(lines[1:]) + "\n"
