"""HTTP servers for tests, each in a thread."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """A request handler that logs nothing."""

    def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def content(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def log_message(self, *_: object) -> None:
        pass


def start(handler: type[Handler], tls: tuple[Path, Path] | None = None) -> ThreadingHTTPServer:
    """Start a server in a thread. ``tls``: files of its key and its certificate."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls[1], tls[0])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


@contextlib.contextmanager
def http_server(handler: type[Handler], tls: tuple[Path, Path] | None = None) -> Iterator[ThreadingHTTPServer]:
    server = start(handler, tls)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
