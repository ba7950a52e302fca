"""Makes any number of cases from the seeds."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import pickle
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr.ring.layout import (
    DEFINITION,
    DEFINITION_PREFIX,
    HEADER,
    HEADER_CRC,
    MAX_DEFINITION,
    SLOT,
    SLOT_BODY,
    SLOT_TAIL,
)
from tests.fuzz.cases import Case
from tests.fuzz.mutate import TEXTS, dumps, mutate_bytes, mutate_data, mutate_message
from tests.fuzz.seeds import JOB, Seeds
from tests.fuzz.tokens import pick_token
from tests.support.grpc_calls import LOGS, METRICS, TRACES
from tests.support.hostile_http2 import END_HEADERS, HEADERS, NEWEST, PREFACE, frame, request, settings

PATHS = {TRACES: "/v1/traces", LOGS: "/v1/logs", METRICS: "/v1/metrics"}
_MESSAGES: dict[str, type[Any]] = {
    TRACES: ExportTraceServiceRequest,
    LOGS: ExportLogsServiceRequest,
    METRICS: ExportMetricsServiceRequest,
}
JOB_CASES = 300
"""Cases after which a worker continues with another job."""
_API = (
    "/", "/healthz", "/metrics", "/api/v1/jobs", "/api/v1/jobs/0123456789abcdef", "/api/v1/incidents",
    "/api/v1/incidents/0123456789abcdef", "/api/v1/events", "/page/page.js", "/page/../api.py", "/v1/traces",
)  # fmt: skip
_QUERIES = ("job", "state", "before", "limit", "view", "x")
_VALUES = ("firing", "resolved", "brief", "fuzz/job", "10", "2026-01-02T03:04:05.678Z", "2026-01-02", *TEXTS)
_HEADERS = (
    "Accept-Encoding", "Authorization", "Content-Encoding", "Content-Length", "Content-Type", "Connection", "Cookie",
    "Expect", "Host", "If-None-Match", "Range", "Sec-Fetch-Site", "TE", "Transfer-Encoding", "Upgrade", "X-Odd",
)  # fmt: skip
_HEADER_VALUES = (
    "gzip", "chunked", "identity", "close", "keep-alive", "application/json", "application/x-protobuf", "-1", "0",
    "99999999999999999999999", "100-continue",
    "Bearer x", "Basic !!!", "Basic w6k6w6k=", "bytes=0-", "websocket", "h2c",
    "cross-site", "*/*;q=9", "", "\xff\xfe", "x" * 9_000,
)  # fmt: skip


class Generator:
    """Makes the cases of one worker. ``rnd``: its own generator. ``worker``: its number, below 10."""

    def __init__(self, seeds: Seeds, rnd: random.Random, worker: int = 0) -> None:
        self._seeds = seeds
        self._rnd = rnd
        self._worker = worker
        self._made = 0

    def for_collector(self) -> Case:
        """Return a request of any kind."""
        self._made += 1
        kinds: tuple[Callable[[], Case], ...] = (
            self._otlp, self._otlp, self._report, self._report, self._report, self._json, self._watch, self._api,
            self._raw_http, self._raw_grpc,
        )  # fmt: skip
        case = self._rnd.choice(kinds)()
        if not case.target.startswith("raw"):
            case.more["token"] = pick_token(self._rnd)
        return case

    def for_reader(self) -> Case:
        """Return a file."""
        return self._rnd.choice((self._dump, self._dump_data, self._ring, self._folder))()

    def _folder(self) -> Case:
        """Return a file beside a sound file of another rank of the job, because the reader compares ranks."""
        sound, other = self._rnd.choice(self._seeds.pairs)
        data = other
        if other.startswith(b"{") or self._rnd.random() < 0.5:
            data = mutate_bytes(self._rnd, other, sound)
        else:
            changed = mutate_data(self._rnd, pickle.loads(other))
            with contextlib.suppress(TypeError, ValueError, RecursionError, struct.error, OverflowError):
                data = pickle.dumps(changed, self._rnd.choice((0, 2, 4, 5)))
        return Case("folder", data, {"beside": base64.b64encode(sound).decode()})

    def _own(self, data: bytes) -> bytes:
        """Put this worker's job into the data. The job changes from time to time, because after a report with a large
        number all other reports of the job are too late."""
        return data.replace(JOB.encode(), f"fz{self._worker}{self._made // JOB_CASES % 10**5:05}".encode())

    def _send(self, signal: str, data: bytes, kind: str = "application/x-protobuf") -> Case:
        rnd = self._rnd
        more: dict[str, Any] = {"signal": signal}
        if rnd.random() < 0.3:
            data = gzip.compress(data, 1)
            data = mutate_bytes(rnd, data) if rnd.random() < 0.3 else data
            more["encoding"] = rnd.choice(("gzip", "gzip", "deflate"))
        if kind != "application/x-protobuf" or rnd.random() < 0.5:
            return Case("http", data, {**more, "kind": kind})
        if rnd.random() < 0.05:  # a call must have one message
            return Case("grpc stream", data, {**more, "times": rnd.choice((0, 2, 2, 5))})
        return Case("grpc", data, {**more, "compressed": rnd.random() < 0.2})

    def _otlp(self) -> Case:
        rnd = self._rnd
        signal = rnd.choice((TRACES, TRACES, LOGS, METRICS))
        data, other = (self._own(rnd.choice(self._seeds.requests[signal])) for _ in range(2))
        change = mutate_message if rnd.random() < 0.75 else mutate_bytes
        return self._send(rnd.choice((signal, signal, signal, TRACES, LOGS)), change(rnd, data, other))

    def _report(self) -> Case:
        """Return a request of reports. Many are nearly valid, so that the collector judges them."""
        rnd = self._rnd
        event, report = rnd.choice(self._seeds.reports)
        resource = self._own(self._seeds.resource)
        if rnd.random() < 0.2:
            resource = mutate_message(rnd, resource, b"")
        changed = mutate_data(rnd, {**report, "n": self._made})
        body = dumps(rnd, changed).decode("utf-8", "replace")
        record = LogRecord(event_name=event, body=AnyValue(string_value=body))
        try:
            of = Resource.FromString(resource)
        except DecodeError:
            of = Resource.FromString(self._seeds.resource)
        logs = ResourceLogs(resource=of, scope_logs=[ScopeLogs(log_records=[record])])
        return self._send(LOGS, ExportLogsServiceRequest(resource_logs=[logs]).SerializeToString())

    def _json(self) -> Case:
        rnd = self._rnd
        signal = rnd.choice((TRACES, LOGS, METRICS))
        message = _MESSAGES[signal].FromString(rnd.choice(self._seeds.requests[signal]))
        data = mutate_data(rnd, json_format.MessageToDict(message))
        return self._send(signal, dumps(rnd, data), "application/json")

    def _watch(self) -> Case:
        rnd = self._rnd
        data = rnd.choice(self._seeds.watches)
        if rnd.random() < 0.8:
            data = mutate_message(rnd, data, rnd.choice(self._seeds.watches))
        return Case("watch", data)

    def _api(self) -> Case:
        rnd = self._rnd
        path = rnd.choice(_API)
        if rnd.random() < 0.3:
            path = mutate_bytes(rnd, path.encode(), b"/%2e%00?#\xff").decode("latin-1")
        path = quote(path, safe="/?&=%" if rnd.random() < 0.7 else "/")
        pairs = [
            f"{rnd.choice(_QUERIES)}={quote(rnd.choice(_VALUES)[:6_000].encode('utf-8', 'surrogatepass'))}"
            for _ in range(rnd.randrange(4))
        ]
        return Case("http head", b"", {"method": "GET", "path": "&".join([path + "?", *pairs]), **self._headers()})

    def _headers(self) -> dict[str, Any]:
        rnd = self._rnd
        return {"headers": [[rnd.choice(_HEADERS), rnd.choice(_HEADER_VALUES)] for _ in range(rnd.randrange(4))]}

    def _raw_http(self) -> Case:
        rnd = self._rnd
        body = rnd.choice(self._seeds.requests[TRACES])
        head = "POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf"
        head += f"\r\nContent-Length: {len(body)}"
        for name, value in self._headers()["headers"]:
            head += f"\r\n{name}: {value}"
        data = (head + "\r\n\r\n").encode("latin-1", "replace") + body
        return Case(
            "raw http", mutate_bytes(rnd, data * rnd.choice((1, 2, 20)), b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        )

    def _raw_grpc(self) -> Case:
        """Return HTTP/2 frames of any kind, often after the headers of a call."""
        rnd = self._rnd
        call = settings() + frame(HEADERS, END_HEADERS, 1, request() + NEWEST * rnd.choice((0, 1, 4_000)))
        payloads = (rnd.randbytes(rnd.choice((0, 4, 8, 100))) for _ in range(rnd.randrange(8)))
        frames = b"".join(
            frame(rnd.randrange(12), rnd.randrange(256), rnd.choice((0, 1, 3, 2**31 - 1)), payload)
            for payload in payloads
        )
        data = PREFACE + rnd.choice((call, b"")) + frames
        return Case("raw grpc", mutate_bytes(rnd, data) if rnd.random() < 0.3 else data)

    def _dump(self) -> Case:
        rnd = self._rnd
        names = list(self._seeds.dumps)
        data = mutate_bytes(rnd, *(self._seeds.dumps[rnd.choice(names)] for _ in range(2)))
        return Case("dump", data)

    def _dump_data(self) -> Case:
        rnd = self._rnd
        name = rnd.choice(list(self._seeds.dumps))
        raw = self._seeds.dumps[name]
        data = (
            json.loads(raw) if raw.startswith(b"{") else pickle.loads(gzip.decompress(raw) if name == "gzip" else raw)
        )
        changed = mutate_data(rnd, data)
        try:
            made = dumps(rnd, changed) if rnd.random() < 0.4 else pickle.dumps(changed, rnd.choice((0, 2, 4, 5)))
        except (TypeError, ValueError, RecursionError, struct.error, OverflowError):
            made = dumps(rnd, changed)
        return Case("dump", made)

    def _ring(self) -> Case:
        """Return a ring with changed bytes. Some check sums of header, records and definitions are made right."""
        rnd = self._rnd
        ring = bytearray(rnd.choice(self._seeds.rings))
        for _ in range(rnd.choice((1, 3, 30))):
            at = rnd.choice((rnd.randrange(HEADER.size), rnd.randrange(len(ring)), 8 * rnd.randrange(len(ring) // 8)))
            piece = rnd.choice(
                (rnd.randbytes(1), struct.pack("<Q", rnd.choice((0, 1, 40, 2**20, 2**32, 2**63, 2**64 - 1))))
            )
            ring[at : at + len(piece)] = piece
        if rnd.random() < 0.8:
            struct.pack_into("<I", ring, HEADER_CRC, zlib.crc32(ring[: HEADER.size]))
        for at in range(0, len(ring) - DEFINITION.size, 8) if rnd.random() < 0.5 else ():
            self._change_checked(ring, at)
        if rnd.random() < 0.1:
            del ring[rnd.randrange(len(ring)) :]
        return Case("ring", bytes(ring))

    def _change_checked(self, ring: bytearray, at: int) -> None:
        """If there is a definition or a record at ``at``, change some of its bytes and make its check sum right."""
        rnd = self._rnd
        if rnd.random() < 0.5:
            return
        length, _, _, crc = DEFINITION.unpack_from(ring, at)
        body = at + DEFINITION.size
        if 0 < length < MAX_DEFINITION and crc == _definition_crc(ring, at, length):
            ring[body + rnd.randrange(length)] = rnd.choice((0, 1, 0x7F, 0x80, 0xFF, rnd.randrange(256)))
            struct.pack_into("<I", ring, at + DEFINITION_PREFIX.size, _definition_crc(ring, at, length))
            return
        end = at + SLOT_BODY.size
        if at + SLOT.size > len(ring) or SLOT_TAIL.unpack_from(ring, end)[0] != zlib.crc32(ring[at:end]):
            return
        struct.pack_into("<I", ring, at + 4 * rnd.randrange(SLOT_BODY.size // 4), rnd.choice((0, 1, 2**32 - 1)))
        struct.pack_into("<I", ring, end, zlib.crc32(ring[at:end]))


def _definition_crc(ring: bytearray, at: int, length: int) -> int:
    body = at + DEFINITION.size
    return zlib.crc32(ring[body : body + length], zlib.crc32(ring[at : at + DEFINITION_PREFIX.size]))
