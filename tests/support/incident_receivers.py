"""HTTP servers that receive incidents in tests."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_servers import Handler, start


class Receiver:
    """Keeps every request: method, path, headers, body. ``status``: of its answers; ``reply``: status and body."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.status = 200
        receiver = self

        class Answers(Handler):
            def answer(self) -> None:
                request = (self.command, self.path, dict(self.headers.items()), self.content())
                receiver.requests.append(request)
                status, reply = receiver.reply(*request)
                self.reply(status, reply, {"Content-Type": "application/json"})

            do_POST = do_GET = do_PATCH = answer  # noqa: N815  http.server's names

        self.server = start(Answers)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def reply(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        return self.status, b"{}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class AlertSink(Receiver):
    """Accepts Alertmanager's POST /api/v2/alerts, and keeps the alerts."""

    def __init__(self) -> None:
        self.posts: list[list[dict[str, Any]]] = []
        super().__init__()

    def reply(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if (method, path, self.status) == ("POST", "/api/v2/alerts", 200):
            self.posts.append(json.loads(body))
        return self.status, b""


class FakeGrafana(Receiver):
    """Checks the documented contract of Grafana's annotations HTTP API, and keeps annotations as Grafana would.

    Grafana is in no package source of these tests. The checks follow
    grafana.com/docs/grafana/latest/developers/http_api/annotations: POST needs text and times in milliseconds and
    answers with an id; PATCH takes the same fields, all optional; GET finds annotations with all given tags.
    """

    TOKEN = "glsa_0123456789"

    def __init__(self) -> None:
        self.marks: dict[int, dict[str, Any]] = {}
        self.lose_answers = 0
        super().__init__()

    def reply(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if headers.get("Authorization") != f"Bearer {self.TOKEN}":
            return 401, b'{"message": "Invalid API key"}'
        if self.status != 200:
            return self.status, b"{}"
        parts = urlsplit(path)
        if method == "GET" and parts.path == "/api/annotations":
            wanted = set(parse_qs(parts.query)["tags"])
            found = [{"id": number, **mark} for number, mark in self.marks.items() if wanted <= set(mark["tags"])]
            return 200, json.dumps(found).encode()
        data = json.loads(body)
        known = {"dashboardUID", "panelId", "time", "timeEnd", "tags", "text"}
        times = [data[name] for name in ("time", "timeEnd") if name in data]
        if not set(data) <= known or not all(isinstance(t, int) and t > 1_600_000_000_000 for t in times):
            return 400, b'{"message": "bad request data"}'
        if method == "POST" and parts.path == "/api/annotations" and data.get("text"):
            number = len(self.marks) + 1
            self.marks[number] = data
            if self.lose_answers:
                self.lose_answers -= 1
                return 502, b""
            return 200, json.dumps({"message": "Annotation added", "id": number}).encode()
        number = int(parts.path.rpartition("/")[2])
        if method == "PATCH" and number in self.marks:
            self.marks[number].update(data)
            return 200, b'{"message": "Annotation patched"}'
        return 404, b"{}"
