"""Links to traces without an option: the collector recognises a Jaeger backend by its page, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Iterator

import pytest
from otel_fr_collector.forward import jaeger
from otel_fr_collector.incidents.links import Links

from tests.support.http_servers import Handler, http_server
from tests.support.incident_data import incident_data
from tests.support.ports import free_port

JAEGER = b"<!doctype html><html><head><title>Jaeger UI</title></head></html>"


@contextlib.contextmanager
def page(body: bytes, status: int = 200) -> Iterator[int]:
    class Page(Handler):
        def do_GET(self) -> None:
            self.reply(status, body)

    with http_server(Page) as server:
        yield server.server_port


@pytest.mark.parametrize(
    ("body", "status", "found"), [(JAEGER, 200, True), (JAEGER, 404, False), (b"Tempo", 200, False)]
)
def test_jaeger_is_recognised(body: bytes, status: int, found: bool) -> None:
    with page(body, status) as port:
        assert bool(jaeger.find_page(["grpc://127.0.0.1:4317"], port=port)) is found


def test_nothing_listens_there() -> None:
    assert jaeger.find_page(["http://127.0.0.1:4317", "grpc://[::1]:4317"], port=free_port()) == ""


def test_a_jaeger_of_this_machine_is_linked_by_the_name_by_which_browsers_reach_the_page() -> None:
    with page(JAEGER) as port:
        found = jaeger.find_page(["http://127.0.0.1:4317"], "http://localhost:8080", port)
        assert found == f"http://localhost:{port}"
        found = jaeger.find_page(["http://127.0.0.1:4317"], "http://not-a-host.invalid:8080", port)
        assert found == f"http://127.0.0.1:{port}"


def test_incidents_link_there_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    links, data = Links(), incident_data(trace_id="ab12")
    assert "trace" not in links.of(data, 1.0, 2.0)
    with page(JAEGER) as port:
        monkeypatch.setattr(jaeger, "find_page", functools.partial(jaeger.find_page, port=port))
        asyncio.run(jaeger.look_for_page(links, ["http://127.0.0.1:4317"]))
        assert links.of(data, 1.0, 2.0)["trace"] == f"http://127.0.0.1:{port}/trace/ab12"
