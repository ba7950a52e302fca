"""Sends cases to a collector, and checks the answers."""

from __future__ import annotations

import contextlib
import http.client
import socket
import urllib.parse
from collections import deque
from typing import Any

import grpc

from tests.fuzz.cases import Case
from tests.fuzz.generate import PATHS
from tests.support.collector_process import Collector
from tests.support.grpc_calls import WATCH

ANSWER_SECONDS = 40.0
"""Limit for one answer: more than the collector's limit for a request to arrive."""
RAW_SECONDS = 0.05
"""Limit for the answer to bytes that may be an incomplete request."""
OPEN_STREAMS = 20
"""Control streams that one client keeps open."""
_WRONG = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED)


class Client:
    """Sends cases over its own connections."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._channel = grpc.insecure_channel(collector.grpc)
        self._watches: deque[Any] = deque()

    def close(self) -> None:
        self._channel.close()

    def send(self, case: Case) -> str:
        """Send a case. Returns what is wrong with the answer; "": nothing."""
        match case.target:
            case "grpc":
                return self._grpc(case)
            case "watch":
                return self._watch(case)
            case "http":
                url = urllib.parse.urlsplit(self._collector.otlp_http)
                headers = {"Content-Type": case.more["kind"], **_authorization(case)}
                if "encoding" in case.more:
                    headers["Content-Encoding"] = case.more["encoding"]
                return self._http(url.netloc, "POST", PATHS[case.more["signal"]], list(headers.items()), case.data)
            case "http head":
                url = urllib.parse.urlsplit(self._collector.http)
                given = [*case.more["headers"], *_authorization(case).items()]
                return self._http(url.netloc, case.more["method"], case.more["path"], given, b"")
            case "grpc stream":
                return self._stream(case)
            case "raw http":
                return self._raw(urllib.parse.urlsplit(self._collector.otlp_http).netloc, case.data)
            case "raw grpc":
                return self._raw(self._collector.grpc, case.data)
        raise ValueError(f"no such target: {case.target}")

    def _grpc(self, case: Case) -> str:
        call = self._channel.unary_unary(case.more["signal"], None, None)
        compression = grpc.Compression.Gzip if case.more.get("compressed") else None
        try:
            call(
                case.data,
                timeout=ANSWER_SECONDS,
                compression=compression,
                wait_for_ready=True,
                metadata=_metadata(case),
            )
        except grpc.RpcError as error:
            return _wrong(error)
        return ""

    def _stream(self, case: Case) -> str:
        """Make a call with several messages, or none."""
        call = self._channel.stream_unary(case.more["signal"], None, None)
        messages = iter([case.data] * case.more["times"])
        try:
            call(messages, timeout=ANSWER_SECONDS, wait_for_ready=True, metadata=_metadata(case))
        except grpc.RpcError as error:
            return _wrong(error)
        return ""

    def _watch(self, case: Case) -> str:
        watch = self._channel.unary_stream(WATCH, None, None)
        stream = watch(case.data, timeout=ANSWER_SECONDS * 10, metadata=_metadata(case))
        self._watches.append(stream)
        if len(self._watches) > OPEN_STREAMS:
            old = self._watches.popleft()
            if old.is_active():
                old.cancel()
            elif old.code() in _WRONG:
                return f"gRPC status {old.code().name}: {old.details()}"
        return ""

    def _http(self, netloc: str, method: str, path: str, headers: list[Any], body: bytes) -> str:
        client = http.client.HTTPConnection(netloc, timeout=ANSWER_SECONDS)
        try:
            client.putrequest(
                method, path, skip_host=any(name == "Host" for name, _ in headers), skip_accept_encoding=True
            )
            for name, value in headers:
                client.putheader(name, value)
            if body:
                client.putheader("Content-Length", str(len(body)))
            client.endheaders(body or None)
            answer = client.getresponse()
            if "event-stream" in answer.headers.get("content-type", ""):
                answer.read(1)
            else:
                answer.read()
            return "" if answer.status < 500 or answer.status == 503 else f"HTTP status {answer.status}"
        except (http.client.HTTPException, ValueError, ConnectionError):
            return ""  # the request was invalid, or the server closed the connection because of it
        except TimeoutError:
            # The server waits for a body that the request announced but did not bring.
            return "" if headers and not body else "no answer"
        finally:
            client.close()

    def _raw(self, netloc: str, data: bytes) -> str:
        host, _, port = netloc.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS) as raw:
            raw.sendall(data)
            raw.settimeout(RAW_SECONDS)
            answer = b""
            while piece := raw.recv(65_536):
                answer += piece
            return "HTTP status 500" if b"HTTP/1.1 500" in answer else ""
        return ""


def _authorization(case: Case) -> dict[str, str]:
    token = case.more.get("token")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _metadata(case: Case) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in _authorization(case).items())


def _wrong(error: grpc.RpcError) -> str:
    code = error.code() if isinstance(error, grpc.Call) else None
    if code in _WRONG and isinstance(error, grpc.Call):
        return f"gRPC status {code.name}: {error.details()}"
    return ""
