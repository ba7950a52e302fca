"""A moving rank with a real monitor. Reports are brief, unless the collector asks for more or something is unusual."""

from __future__ import annotations

from pathlib import Path

from otel_fr.control.v1.control_pb2 import Command, Report
from tests.support.monitored_rank import play
from tests.support.otlp_sink import Event, Sink, grpc_sink

PROGRESS = "torch.rank.progress"


def progress(sink: Sink, *, brief: bool, after: int) -> Event:
    """Return the first progress report of that kind with a higher number."""

    def found() -> list[Event]:
        reports = [one for one in sink.named(PROGRESS) if one.report["n"] > after]
        return [one for one in reports if one.report.get("brief", False) is brief]

    event: Event = sink.wait(found, what=f"a {'brief' if brief else 'full'} report")[0]
    return event


def test_reports_are_brief_while_a_rank_moves_and_full_when_it_is_asked_or_stands_still(tmp_path: Path) -> None:
    with grpc_sink(control=True) as sink, play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address}) as rank:
        sink.wait(lambda: sink.watchers, what="a monitor that listens")
        rank.send_command("issue", n=400, every=0.02)
        first = progress(sink, brief=False, after=0).report
        brief = progress(sink, brief=True, after=first["n"]).report
        assert [group.keys() for group in brief["groups"]] == [
            {"id", "enq", "done", "p2p", "issued", "ended", "gone", "fp"}
        ]
        assert "last" not in brief
        sink.commands.put(Command(report=Report()))
        asked = progress(sink, brief=False, after=brief["n"]).report
        assert (asked["groups"][0]["desc"], asked["groups"][0]["ranks"]) == ("default_pg", "0-3")
        assert asked["groups"][0]["enq"] >= brief["groups"][0]["enq"] > 0
        progress(sink, brief=True, after=asked["n"])
        assert rank.read()["done"] is None
        # A pause of a busy machine may make earlier reports full, too.
        still = sink.event(PROGRESS, where=lambda told: told["groups"][0]["done"] == 400 and "last" in told).report
        assert (still.get("brief", False), still["last"]["seq"]) == (False, 400)
