"""A program with its own spans. otel-fr's spans of steps and calls link to them."""

from __future__ import annotations

from pathlib import Path

from tests.support import single_rank
from tests.support.otlp_sink import grpc_sink

PROGRAM = """
import otel_fr
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

start()
tracer = TracerProvider().get_tracer("the program's")
for number in range(3):
    with tracer.start_as_current_span("training step") as span:
        otel_fr.step(number)
        dist.all_reduce(torch.ones(2))
        context = span.get_span_context()
        print(number, f"{context.trace_id:032x} {context.span_id:016x}")
"""


def test_steps_and_calls_link_to_the_programs_spans(tmp_path: Path) -> None:
    with grpc_sink() as sink:
        env = {"OTEL_FR_ENABLED": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": sink.address}
        out = single_rank.succeed(tmp_path, PROGRAM, **env).splitlines()
        sink.wait(lambda: sum(span.name in ("step [rank 0]", CALL) for span in sink.spans) == 6)
    own = {int(number): (trace, span) for number, trace, span in map(str.split, out)}
    for name, links in (("step [rank 0]", 1), (CALL, 2)):
        spans = sorted((span for span in sink.spans if span.name == name), key=lambda span: span.start_time_unix_nano)
        found = [(span.links[-1].trace_id.hex(), span.links[-1].span_id.hex()) for span in spans]
        assert found == [own[number] for number in range(3)]
        assert {len(span.links) for span in spans} == {links}


CALL = "all_reduce default_pg [rank 0]"
