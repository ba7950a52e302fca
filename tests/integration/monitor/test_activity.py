"""A real program with its real monitor: spans of sections and steps, overdue sections, and the program's requests."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support import single_rank
from tests.support.otlp_messages import attributes
from tests.support.otlp_sink import grpc_sink
from tests.support.waiting import PATIENCE

PROGRAM = """
import otel_fr
from otel_fr.fault_tolerance import RankMonitorClient, WorkloadAction, WorkloadControlRequest

start()
client = RankMonitorClient()
client.init_workload_monitoring()
for number in range(3):
    otel_fr.step(number)
    with otel_fr.section("forward", timeout=60):
        dist.all_reduce(torch.ones(2))
    client.start_section("client's")
    client.send_heartbeat()
    client.end_section("client's")
with otel_fr.section("too long", timeout=0.3):
    while not os.path.exists("seen"):
        time.sleep(0.05)
client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "bad GPU"))
otel_fr.start_section("open at the end")
print(client.calculate_and_set_hb_timeouts(skip_if_not_ready=True))
client.shutdown_workload_monitoring()
"""


def test_what_a_program_tells_arrives(tmp_path: Path) -> None:
    with grpc_sink() as sink:
        program = single_rank.write(tmp_path, PROGRAM)
        with single_rank.begin(program, OTEL_EXPORTER_OTLP_ENDPOINT=sink.address) as process:
            overdue = sink.event("torch.rank.overdue")
            (tmp_path / "seen").touch()
            assert process.wait(PATIENCE) == 0
        sink.event("torch.rank.exited")
        control = sink.event("otel_fr.workload_control")
        sink.wait(lambda: any(span.name == "open at the end [rank 0]" for span in sink.spans))
    by_name: dict[str, list[Span]] = {}
    for span in sink.spans:
        by_name.setdefault(span.name.removesuffix(" [rank 0]"), []).append(span)
    assert {name: len(found) for name, found in by_name.items() if "default_pg" not in name} == {
        "step": 3,
        "forward": 3,
        "client's": 3,
        "too long": 1,
        "open at the end": 1,
    }
    sections = {span.span_id: span for span in sink.spans if span.name == "forward [rank 0]"}
    steps = {
        span.span_id: attributes(span.attributes)["torch.step"] for span in sink.spans if span.name == "step [rank 0]"
    }
    calls = [span for span in sink.spans if "all_reduce" in span.name]
    assert len(calls) == 3
    for number, call in enumerate(calls):
        (link,) = call.links
        section = sections[link.span_id]
        assert link.trace_id == section.trace_id != call.trace_id
        assert steps[section.parent_span_id] == attributes(call.attributes)["torch.step"] == number
    assert control.attributes == {
        "otel_fr.workload_control.action": "exclude_node",
        "otel_fr.workload_control.description": "bad GPU",
    }
    assert control.resource["torch.rank"] == 0
    (item,) = [item for item in overdue.report["activity"] if item.get("overdue")]
    assert (item["kind"], item["name"], item["limit_s"]) == ("section", "too long", 0.3)
    assert "time.sleep(0.05)" in overdue.report["stack"]
    assert overdue.report["step"] == 2
