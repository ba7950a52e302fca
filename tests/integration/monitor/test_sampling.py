"""A real monitor that sends a sample of the spans, as OpenTelemetry's variables say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otel_fr import identity
from otel_fr.control.v1.control_pb2 import Command, Dump, FetchCalls
from tests.support.monitored_rank import play
from tests.support.otlp_sink import Sink, grpc_sink
from tests.support.rings import RANKS

RUN = identity.run_id("job-7", 1, "n0")
GROUP = identity.group_id("0", RANKS)


def sent(sink: Sink) -> set[int]:
    """Return the record ids of the spans that have arrived."""
    key = "torch.collective.record_id"
    return {one.value.int_value for span in sink.spans for one in span.attributes if one.key == key}


def in_sample(number: int, ratio: float) -> bool:
    trace = identity.trace_id(RUN, GROUP, "collective", number)
    return int.from_bytes(trace[8:], "big") < ratio * 2**64


def test_a_sample_is_sent_with_what_fails_and_what_an_incident_asks_for(tmp_path: Path) -> None:
    with grpc_sink(control=True) as sink:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.address,
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
        }
        with play(tmp_path, env) as rank:
            rank.do("issue", n=200)
            expected = {number - 1 for number in range(1, 201) if in_sample(number, 0.25)}
            sink.wait(lambda: sent(sink) >= expected, what="the spans of the sample")
            assert sent(sink) == expected

            rank.do("issue", complete="failed")
            expected |= {200}
            sink.wait(lambda: 200 in sent(sink), what="the call that failed")
            assert sent(sink) == expected

            rank.do("issue", complete=None)
            sink.wait(lambda: sink.watchers, what="the monitor listens")
            trace = next(n for n in range(203, 250) if not in_sample(n, 0.25))
            command = Dump(incident_id="i1", trace_id=identity.trace_id(RUN, GROUP, "collective", trace))
            sink.commands.put(Command(dump=command))
            left_out = [n for n in range(200) if n not in expected]
            sink.wait(lambda: sent(sink) >= expected | set(left_out[-64:]), what="the calls before the incident")
            rank.do("finish")
            rank.do("issue", n=50)  # too few to show which calls are slow: slow calls are sent, too
            later = {number - 1 for number in range(203, 253) if in_sample(number, 0.25)}
            wanted = expected | set(left_out[-64:]) | {201, trace - 1} | later
            sink.wait(lambda: sent(sink) >= wanted, what="the call that was in flight, and the incident's")
            assert sent(sink) == wanted
            rank.end("leave", clean=True)


def test_a_sampler_that_is_off_leaves_reports_and_nothing_else(tmp_path: Path) -> None:
    with grpc_sink(control=True) as sink:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "OTEL_TRACES_SAMPLER": "always_off"}
        with play(tmp_path, env) as rank:
            rank.do("issue", n=10)
            rank.do("issue", complete="failed")
            rank.end("leave", clean=True)
            sink.wait(lambda: any(one.name == "torch.rank.exited" for one in sink.events), what="the last report")
        assert sink.spans == []
        assert sink.events[-1].report["groups"][0]["enq"] == 11
        assert sink.events[-1].report["sampled"] == 0.0


def test_a_collector_that_asks_for_calls_is_told_which_they_were(tmp_path: Path) -> None:
    def fetched(sink: Sink) -> list[dict[str, Any]]:
        return [one.report["fetched"] for one in sink.events if one.name == "torch.rank.calls"]

    with grpc_sink(control=True) as sink:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "OTEL_TRACES_SAMPLER": "always_off", "CAPACITY": "100"}
        with play(tmp_path, env) as rank:
            sink.wait(lambda: sink.watchers, what="the monitor listens")
            rank.do("issue", n=90)
            rank.do("issue", operation="broadcast")
            sink.commands.put(Command(fetch_calls=FetchCalls(group_id=GROUP, first=1, last=90)))
            sink.commands.put(Command(fetch_calls=FetchCalls(group_id=GROUP, first=90, last=91)))
            sink.wait(lambda: len(fetched(sink)) == 2, what="both answers")
            whole, part = fetched(sink)
            assert (whole["first"], whole["last"], "calls" in whole) == (1, 90, False)
            assert whole["fp"][0] == 1
            assert whole["fp"][-2] == 90
            assert [(call["seq"], call["op"], call["st"]) for call in part["calls"]] == [
                (90, "all_reduce", "completed"),
                (91, "broadcast", "completed"),
            ]
            rank.do("issue", n=100)
            sink.commands.put(Command(fetch_calls=FetchCalls(group_id=GROUP, first=80, last=91)))
            sink.commands.put(Command(fetch_calls=FetchCalls(group_id=GROUP, first=80, last=100)))
            sink.wait(lambda: len(fetched(sink)) == 4, what="both answers")
            gone, cut = fetched(sink)[2:]
            assert (gone["first"], gone.get("calls")) == (93, None)
            assert [call["seq"] for call in cut["calls"]] == list(range(93, 101))
            rank.end("leave", clean=True)
