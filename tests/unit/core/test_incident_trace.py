"""The spans of an incident: what they say, that each has an id of its own, and that odd values break none."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_fr import identity
from otel_fr.incident_trace import FILES, LEAD, LIVE, MAX_STACK, IncidentSpans, RankFacts, headline, place, request_of
from otel_fr.match import Category
from tests.support.incident_data import incident_data
from tests.support.otlp_messages import attributes

TRACE = "ab" * 16
STACK = 'Thread MainThread (most recent call last):\n  File "/job/ddp.py", line 40, in load_shard\n'
WAITING = RankFacts(0, {"host.name": "gpu-3"}, "all_reduce dp", 7, 1_000.0, "/job/ddp.py:15 main")
CULPRIT = RankFacts(2, {"host.name": "gpu-17"}, site="/job/ddp.py:40 load_shard", stack=STACK)


def made(source: str = LIVE, **changed: Any) -> IncidentSpans:
    first, cause = changed.pop("is_first", True), changed.pop("cause", None)
    data = incident_data(**{"trace_id": TRACE, "culprit_ranks": [2], "waiting_ranks": [0, 1], **changed})
    return IncidentSpans(data, 1_001.0, source=source, is_first=first, cause=cause)


def seconds(span: Span) -> tuple[float, float]:
    return span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9


def test_the_incident_is_the_root_and_begins_before_all_other_spans() -> None:
    span = made().incident(1_010.0, 1_000.0)
    assert (span.name, span.parent_span_id) == ("INCIDENT missing_rank: rank 2", b"")
    assert span.span_id == identity.root_span_id(span.trace_id)
    assert seconds(span) == pytest.approx((1_000.0 - LEAD, 1_010.0))
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "rank 1 did not join")


def test_a_waiting_rank_is_provisional_and_no_error() -> None:
    root, span = made().incident(1_010.0), made().waiting(WAITING, 1_010.0)
    assert (span.name, span.parent_span_id) == ("waits: all_reduce dp [rank 0]", root.span_id)
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert seconds(span) == (1_000.0, 1_010.0)
    shown = attributes(span.attributes)
    assert shown["torch.span.provisional"] is True
    assert (shown["torch.rank"], shown["host.name"], shown["torch.collective.sequence_id"]) == (0, "gpu-3", 7)
    assert (shown["code.file.path"], shown["code.line.number"]) == ("/job/ddp.py", 15)


def test_a_culprit_is_an_error_that_says_where_it_is_with_its_stack() -> None:
    span = made().culprit(CULPRIT, 1_010.0)
    assert span.name == "rank 2: not here, load_shard ddp.py:40"
    assert (span.status.code, span.status.message) == (
        Status.STATUS_CODE_ERROR,
        "not here, at /job/ddp.py:40 load_shard",
    )
    (event,) = span.events
    assert (event.name, attributes(event.attributes)) == ("stack of rank 2", {"code.stacktrace": STACK})
    assert attributes(span.attributes)["host.name"] == "gpu-17"


def test_what_ended_a_culprit_is_an_exception_event() -> None:
    dead = RankFacts(2, error="ValueError: bad sample: 4711", stack=STACK)
    span = made(category="rank_dead").culprit(dead, 1_010.0)
    assert span.name == "rank 2: dead, ValueError"
    (event,) = span.events
    assert (event.name, attributes(event.attributes)) == (
        "exception",
        {"exception.type": "ValueError", "exception.message": "bad sample: 4711", "exception.stacktrace": STACK},
    )


def test_a_culprit_of_a_mismatch_shows_its_value() -> None:
    span = made(category="op_mismatch", field="operation", values={"2": "broadcast"}).culprit(CULPRIT, 1_010.0)
    assert span.name == "rank 2: operation is broadcast, load_shard ddp.py:40"


@pytest.mark.parametrize("category", [one.value for one in Category])
def test_every_category_has_words_for_a_culprit_of_which_nothing_is_known(category: str) -> None:
    span = made(category=category).culprit(RankFacts(2), 1_010.0)
    assert span.name.startswith("rank 2: ")
    assert category not in span.name
    assert not span.events


def test_the_end_tells_how_long_it_lasted() -> None:
    span = made().end(4, 1_047.0, "stopped")
    assert (span.name, seconds(span)) == ("RESOLVED missing_rank: rank 2", (1_001.0, 1_047.0))
    assert span.status.code == Status.STATUS_CODE_UNSET
    found = attributes(span.attributes)
    assert (found["torch.incident.resolved"], found["torch.incident.resolution"]) == ("abc", "stopped")


def test_a_consequence_links_to_its_cause_and_accuses_nobody() -> None:
    cause = b"c" * 16
    span = made(caused_by="cause", cause=cause).incident(1_010.0)
    assert span.name == "CONSEQUENCE missing_rank"
    assert [(link.trace_id, link.span_id) for link in span.links] == [(cause, identity.root_span_id(cause))]
    assert "torch.incident.culprit_ranks" not in attributes(span.attributes)


def test_all_spans_have_ids_of_their_own_whoever_sends_them() -> None:
    """A rank's own spans and those of files may be in the same trace."""
    spans: list[Span] = []
    for source in (LIVE, FILES):
        one = made(source)
        spans += [one.incident(1_010.0), one.waiting(WAITING, 1_010.0), one.culprit(CULPRIT, 1_010.0)]
        spans += [one.culprit(RankFacts(2), 1_010.0), one.change(2, 1_020.0), one.end(3, 1_030.0, "over")]
        spans += [one.change(4, 1_040.0), made(source, id="other", is_first=False).incident(1_010.0)]
    ids = {span.span_id for span in spans} | {identity.span_id(bytes.fromhex(TRACE), 0, 7)}
    assert len(ids) == len(spans) + 1
    known = {span.span_id for span in spans} | {b""}
    assert all(span.parent_span_id in known for span in spans)
    assert sum(not span.parent_span_id for span in spans) == 2


def test_no_span_but_the_incident_is_taken_for_a_ranks_call() -> None:
    """Collectors know those by the id of their process group."""
    one = made()
    for span in (one.waiting(WAITING, 1.0), one.culprit(CULPRIT, 1.0), one.change(2, 1.0), one.end(3, 1.0, "over")):
        assert "torch.process_group.id" not in attributes(span.attributes)


def test_a_trace_of_the_most_ranks_with_the_longest_stacks_is_one_request_that_servers_take() -> None:
    one = made()
    facts = [RankFacts(rank, {"host.name": "h" * 200}, stack="x" * 1_000_000) for rank in range(192)]
    spans = [(fact.resource, one.culprit(fact, 1.0) if fact.rank < 64 else one.waiting(fact, 1.0)) for fact in facts]
    data = request_of(spans)
    assert 192 * MAX_STACK < len(data) < 4 << 20
    assert len(ExportTraceServiceRequest.FromString(data).resource_spans) == 192


@pytest.mark.parametrize("odd", [-1.0, -3.8e9, 1e10, 1e300, float("inf"), float("-inf"), float("nan")])
def test_a_time_that_no_clock_has_is_left_out(odd: float) -> None:
    data = incident_data(trace_id=TRACE)
    for started, detected in ((odd, 1.8e9), (1.7e9, odd), (odd, odd), (None, odd)):
        span = IncidentSpans(data, started, source=FILES).incident(detected)
        for found, given in ((span.start_time_unix_nano, started), (span.end_time_unix_nano, detected)):
            assert found in (0, 1.7e9 * 1e9, 1.8e9 * 1e9), (started, detected, given)


@pytest.mark.parametrize("site", ["", "train.py", "x:y z", ":3 f", "a.py:" + "9" * 30 + " f", "\udcff:1 \udcff"])
def test_odd_call_sites_break_nothing(site: str) -> None:
    span = made().culprit(RankFacts(2, site=site, stack=site, error=site), 1.0)
    assert span.SerializeToString()
    assert place(site) in ("", "\udcff \udcff:1")


def test_headlines_name_few_ranks() -> None:
    assert headline(incident_data(culprit_ranks=list(range(0, 900, 3)))) == "INCIDENT missing_rank: ranks 0-897 step 3"
    assert headline(incident_data(culprit_ranks=[], category="deadlock")) == "INCIDENT deadlock"
