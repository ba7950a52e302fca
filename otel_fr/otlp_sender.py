"""Sends prepared protobuf through OpenTelemetry's own OTLP exporters.

The official exporters read every ``OTEL_EXPORTER_OTLP_*`` variable (headers, TLS, compression, timeout) and retry as
the specification says. But encoding SDK span objects takes more than 30 us of CPU time for each span, which is over the
monitor's budget. So the exporters get complete requests: over gRPC by overriding the method that translates an
exporter's input, over HTTP by replacing the encoder function of its module (the names are the same from 1.40 to 1.45).
The monitor and ``otel-fr analyze`` are processes of their own, so no other exporter is affected.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import urlparse, urlsplit

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Signal = Literal["traces", "logs", "metrics"]
Request = ExportTraceServiceRequest | ExportLogsServiceRequest | ExportMetricsServiceRequest

DEFAULT_TIMEOUT = 10.0
"""Seconds: OpenTelemetry's default of ``OTEL_EXPORTER_OTLP_TIMEOUT``."""

CONNECT_SECONDS = 5.0
"""Longest attempt to connect, and longest pause before the next attempt. gRPC's defaults are 20 s and two minutes: the
first connection after an outage would be as late."""
KEEPALIVE_SECONDS = 10.0
"""gRPC pings the server if it expects an answer and receives nothing for this long, and waits as long for the ping's
answer. So it replaces a connection on which two requests in a row have exceeded `DEFAULT_TIMEOUT`. Linux also drops a
connection if the server does not acknowledge sent data for as long (TCP_USER_TIMEOUT)."""
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", int(KEEPALIVE_SECONDS * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_SECONDS * 1000)),
    ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_SECONDS * 1000)),  # gRPC measures bandwidth with pings of its own
    ("grpc.http2.max_pings_without_data", 0),  # no limit: a stream of commands is mostly quiet
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
    ("grpc.max_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
)
"""Options of every connection to a gRPC server, for telemetry and commands alike."""

_log = logging.getLogger("otel_fr.monitor")

_OTHER_PROTOCOL = {
    "grpc": "use port 4317, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
    "http/protobuf": "use port 4318, or set OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
}
"""Advice for a server that does not speak this protocol."""

_GRPC_MODULES = {
    "traces": ("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "OTLPSpanExporter"),
    "logs": ("opentelemetry.exporter.otlp.proto.grpc._log_exporter", "OTLPLogExporter"),
    "metrics": ("opentelemetry.exporter.otlp.proto.grpc.metric_exporter", "OTLPMetricExporter"),
}
_HTTP_MODULES = {
    "traces": ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "OTLPSpanExporter", "encode_spans"),
    "logs": ("opentelemetry.exporter.otlp.proto.http._log_exporter", "OTLPLogExporter", "encode_logs"),
    "metrics": ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "OTLPMetricExporter", "encode_metrics"),
}


class Prepared:
    """A request that is already protobuf, with the length of the batch that an exporter expects."""

    __slots__ = ("count", "request")

    def __init__(self, request: Request, count: int) -> None:
        self.request = request
        self.count = count

    def __len__(self) -> int:
        return self.count


class Sender:
    """Sends requests of one signal. Not thread-safe."""

    def __init__(self, exporter: Any, protocol: str) -> None:
        self.exporter = exporter
        self.protocol = protocol

    def send(self, request: Request, count: int) -> bool:
        """Send one request of ``count`` items; True if the endpoint accepted it. Blocks up to its timeout."""
        return str(getattr(self.exporter.export(Prepared(request, count)), "name", "")) == "SUCCESS"


@dataclass(frozen=True, slots=True)
class GrpcTarget:
    """Address, credentials and headers of the gRPC exporter."""

    endpoint: str
    insecure: bool
    credentials: Any
    headers: tuple[tuple[str, str], ...]

    def channel(self, more: Sequence[tuple[str, int]] = ()) -> grpc.Channel:
        """Return a channel to this target. ``more``: options besides `CHANNEL_OPTIONS`."""
        options = (*CHANNEL_OPTIONS, *more)
        if self.insecure or self.credentials is None:
            return grpc.insecure_channel(self.endpoint, options=options)
        return grpc.secure_channel(self.endpoint, self.credentials, options=options)


def protocol_of(signal: Signal, env: Mapping[str, str] = os.environ) -> str:
    """Return ``grpc`` (OpenTelemetry's default for Python) or ``http/protobuf``. For other values, warn: ``grpc``."""
    name = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
    value = (env.get(name, "") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")).strip().lower() or "grpc"
    if value not in ("grpc", "http/protobuf"):
        _warn_of_protocol(value)
        value = "grpc"
    return value


@functools.cache
def _warn_of_protocol(value: str) -> None:
    """Warn once: mostly, all signals have the same protocol."""
    _log.warning("OTLP protocol %.100r is not supported (grpc, http/protobuf); using grpc", value)


def endpoint_of(signal: Signal, env: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the variable that names the endpoint of a signal, and its value."""
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
    name = own if env.get(own, "").strip() else "OTEL_EXPORTER_OTLP_ENDPOINT"
    return name, env.get(name, "").strip()


def endpoint_address(url: str) -> tuple[str, int]:
    """Return host and port of an endpoint. Raise ValueError if it is not an address."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        return parts.hostname or "", parts.port or {"https": 443, "http": 80}.get(parts.scheme, 4317)
    except ValueError:  # its text may quote a part of a password
        raise ValueError("its host or port cannot be read") from None


def endpoint_mistake(signal: Signal, env: Mapping[str, str] = os.environ) -> str:
    """Say in one line what is probably wrong with an endpoint that accepts nothing, and what to write instead.

    "" if its URL shows no mistake.
    """
    name, url = endpoint_of(signal, env)
    is_grpc = protocol_of(signal, env) == "grpc"
    if not url:
        return ""  # none is given: the exporter has a default
    written = f"{name}={url}"
    if "://" not in url:
        return f"{written} has no scheme: write http://{url} (https:// if the server uses TLS)"
    try:
        parts = urlparse(url)
        port = parts.port
    except ValueError:  # its text may quote a part of a password
        return f"{written}: its host or port cannot be read"
    if parts.scheme not in ("http", "https"):
        return f"{written} has an unknown scheme: write http://{parts.netloc} (https:// if the server uses TLS)"
    if is_grpc and "@" in parts.netloc:
        return f"{written} has credentials, which gRPC does not send: they go into OTEL_EXPORTER_OTLP_HEADERS"
    if is_grpc and port == 4318:
        return f"{written} is used with gRPC, but port 4318 is for HTTP: {_OTHER_PROTOCOL['grpc']}"
    if not is_grpc and port == 4317:
        return f"{written} is used with http/protobuf, but port 4317 is for gRPC: {_OTHER_PROTOCOL['http/protobuf']}"
    return ""


def _timeout(signal: Signal, env: Mapping[str, str], most: float | None) -> dict[str, float]:
    """Return the exporter's timeout argument if ``most`` is less than the environment's value, or than the default."""
    given = env.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_TIMEOUT", "") or env.get("OTEL_EXPORTER_OTLP_TIMEOUT", "")
    try:
        seconds = float(given or DEFAULT_TIMEOUT)
    except ValueError:  # the exporter reports it
        return {}
    return {} if most is None or seconds <= most else {"timeout": most}


def sender_from_env(signal: Signal, env: Mapping[str, str] = os.environ, timeout: float | None = None) -> Sender:
    """Return the official exporter of ``signal`` for prepared requests, as the environment configures it.

    Args:
        timeout: most seconds for a request, whatever the environment says.

    Raises:
        Exception: whatever the exporter raises on unusable settings (a bad compression name, an unreadable key).
    """
    protocol = protocol_of(signal, env)
    if protocol == "grpc":
        module_name, class_name = _GRPC_MODULES[signal]
        base = getattr(importlib.import_module(module_name), class_name)
        methods = {"_translate_data": lambda _, data: data.request, "_count_data": lambda _, data: len(data)}
        exporter_class = type("Prepared" + class_name, (base,), methods)
        own = env.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_COMPRESSION", "")
        compression = (own or env.get("OTEL_EXPORTER_OTLP_COMPRESSION", "")).strip().lower()
        # The specification allows "none", but the gRPC exporter refuses it in the environment.
        none = {"compression": grpc.Compression.NoCompression} if compression == "none" else {}
        exporter = exporter_class(channel_options=CHANNEL_OPTIONS, **none, **_timeout(signal, env, timeout))
        return Sender(exporter, protocol)
    if any(env.get(f"OTEL_EXPORTER_OTLP_{part}CERTIFICATE", "") for part in ("", f"{signal.upper()}_")):
        # The requests library would prefer these to the certificate that is configured for this endpoint.
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            os.environ.pop(name, None)
    module_name, class_name, encoder_name = _HTTP_MODULES[signal]
    module = importlib.import_module(module_name)
    encoder = getattr(module, encoder_name)
    if not getattr(encoder, "accepts_prepared", False):
        setattr(module, encoder_name, _prepared_first(encoder))
    prefix, suffix = "OTEL_PYTHON_EXPORTER_OTLP_", "_CREDENTIAL_PROVIDER"
    is_users = any(name.startswith(prefix) and name.endswith(suffix) for name in env)
    session = {} if is_users else {"session": _bounded_session()}
    return Sender(getattr(module, class_name)(**session, **_timeout(signal, env, timeout)), protocol)


def _bounded_session() -> Any:
    """Return a `requests.Session` whose responses are bounded in time and size.

    The exporters would read responses completely. Their timeout is for each read, so an endpoint that sends a byte a
    second would block the sender for ever. A compressed response of 2 MB would take 2 GB in a process beside the job.
    """
    # Imported here, because a monitor that sends over gRPC does not need them.
    import requests
    import urllib3
    from requests.adapters import HTTPAdapter

    from otel_fr.timed_http import POOL_CLASSES, bounded_body, set_deadline

    class BoundedAdapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **more: Any) -> None:
            super().init_poolmanager(*args, **more)
            self.poolmanager.pool_classes_by_scheme = POOL_CLASSES

        def send(self, request: Any, stream: bool = False, timeout: Any = None, *args: Any, **more: Any) -> Any:
            request.headers["Accept-Encoding"] = "identity"
            set_deadline(timeout if isinstance(timeout, (int, float)) else DEFAULT_TIMEOUT)
            response = super().send(request, True, timeout, *args, **more)
            try:
                response._content = bounded_body(response.raw)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise requests.exceptions.ConnectionError(error, request=request) from error
            response._content_consumed = True
            return response

    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, BoundedAdapter())
    return session


def _prepared_first(encoder: Callable[[Any], Request]) -> Callable[[Any], Request]:
    def encode(batch: Any) -> Request:
        return batch.request if isinstance(batch, Prepared) else encoder(batch)

    encode.accepts_prepared = True  # type: ignore[attr-defined]
    return encode


def grpc_target(sender: Sender) -> GrpcTarget | None:
    """Return what a second gRPC client needs to reach the same server in the same way; None over HTTP."""
    if sender.protocol != "grpc":
        return None
    exporter = sender.exporter
    headers = getattr(exporter, "_headers", None) or ()
    return GrpcTarget(
        endpoint=str(getattr(exporter, "_endpoint", "")),
        insecure=bool(getattr(exporter, "_insecure", True)),
        credentials=getattr(exporter, "_credentials", None),
        headers=tuple((str(key).lower(), str(value)) for key, value in cast("Any", headers)),
    )
