"""A process that becomes a rank of another run. Its monitor ends the old run, and continues with the new rank."""

from __future__ import annotations

from pathlib import Path

from otel_fr import identity
from otel_fr.dumps.read import load
from tests.support.monitored_rank import play
from tests.support.otlp_messages import attributes
from tests.support.otlp_sink import grpc_sink

OLD, NEW = (identity.run_id("job-7", 1, nonce) for nonce in ("n0", "n1"))


def test_spans_reports_commands_and_files_are_those_of_the_rank_in_its_present_run(tmp_path: Path) -> None:
    env = {"RANK": "2", "OTEL_FR_STALL_SECONDS": "1000"}  # a stalled rank would write its file, too
    with grpc_sink(control=True) as sink, play(tmp_path, env | {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address}) as rank:
        sink.event("torch.rank.started")
        sink.wait(lambda: sink.watchers, what="control stream")
        rank.do("issue", n=30)
        rank.do("issue", complete=None)
        rank.do("enter_run", rank=1, world_size=3)
        rank.do("issue", n=7)
        left = sink.event("torch.rank.exited")
        assert (left.resource["torch.rank"], left.resource["torch.run.id"]) == (2, OLD)
        assert left.report["exit"] == {"code": 0, "signal": 0, "clean": True, "known": False}
        assert [(group["enq"], group["gone"]) for group in left.report["groups"]] == [(31, True)]
        joined = sink.events_named("torch.rank.started", 2)[1]
        assert (joined.resource["torch.rank"], joined.resource["torch.world_size"]) == (1, 3)
        assert (joined.resource["torch.run.id"], joined.report["rank"]) == (NEW, 1)
        sink.wait(lambda: len(sink.spans) == 38)
        records = [attributes(span.attributes)["torch.collective.record_id"] for span in sink.spans]
        assert sorted(records) == list(range(38))
        of_new = [span for span, record in zip(sink.spans, records, strict=True) if record > 30]
        group = identity.group_id("0", (0, 1, 2))
        ids = [identity.trace_id(NEW, group, "collective", number) for number in range(1, 8)]
        assert sorted(span.trace_id for span in of_new) == sorted(ids)
        assert {(found["torch.rank"], found["torch.run.id"]) for found in sink.span_resources} == {(2, OLD), (1, NEW)}
        sink.wait(lambda: [(w.rank, w.run_id) for w in sink.watchers] == [(2, OLD), (1, NEW)], what="control streams")

        rank.do("say", message={"cmd": "dump", "reason": "asked"})
        written = sink.event("torch.flight_recorder.written")
        assert written.report["file"] == str(tmp_path / "dumps" / "otel_fr_rank_1")
        dump = load(Path(written.report["file"]))
        assert (dump.rank, dump.text("run_id"), dump.integer("first_record")) == (1, NEW, 31)
        assert dump.entries.record.tolist() == list(range(31, 38))
        assert not dump.partial
        assert [info.enqueued for info in dump.groups.values()] == [7]
        assert rank.end("leave", code=0, clean=True) == 0
        ended = sink.events_named("torch.rank.exited", 2)[1]
        assert (ended.resource["torch.run.id"], ended.report["exit"]["known"]) == (NEW, True)
