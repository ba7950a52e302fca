"""The rank report's schema against reports written by hand, against the documentation, and against itself."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_fr import rank_report
from otel_fr.rank_report import (
    DropCounts,
    RankReport,
    ReportedActivity,
    ReportedCall,
    ReportedDecision,
    ReportedException,
    ReportedExit,
    ReportedGroup,
    ReportedRange,
    build,
    parse,
)
from otel_fr.rank_report.ras import (
    MAX_LABEL,
    MAX_RANKS_TEXT,
    ReportedCommunicator,
    ReportedFact,
    ReportedRas,
)
from tests.support.paths import ROOT

OF_RAS = {"RAS", "COMMUNICATOR", "FACT"}
"""What NCCL's RAS has answered stands in `otel_fr.rank_report.ras` alone: no verdict rests on it."""

CALL_JSON = (
    '{"g":"a1","k":"p2p","seq":5,"op_id":6,"rec":41,"i":2,"op":"recv","be":"gloo",'
    '"in":[[3,4],[]],"idt":["Float","Long"],"out":[[8]],"odt":["Half"],"isp":[1,2],"osp":null,'
    '"ro":"sum","root":3,"peer":null,"tag":7,"st":"failed","timeout_ms":600000,"age_s":1.25,"site":"train.py:42 step",'
    '"any":true,"posted":true,"wait_s":0.5,"dur_s":0.01,"gap_s":0.0,"err":"timeout","ng":"3","ngd":"tp","ngr":"0-3","nga":true}'
)
PLAIN_CALL_JSON = (
    '{"g":"a1","k":"collective","seq":5,"op_id":6,"rec":42,"i":0,"op":"all_reduce","be":"nccl",'
    '"in":[[3]],"idt":["Float"],"out":[[3]],"odt":["Float"],"isp":null,"osp":null,'
    '"ro":"sum","root":null,"peer":null,"tag":null,"st":"scheduled","timeout_ms":600000,"age_s":1.5,"site":""}'
)
REPORT_JSON = (
    '{"v":1,"rank":1,"n":17,"stall_s":2.5,"groups":[{"id":"a1","name":"0","desc":"default_pg","ranks":"0-3",'
    '"backend":"gloo","enq":5,"done":4,"p2p":3,"issued":8,"ended":7,"gone":false,"idle_s":3.2},'
    '{"id":"b2","name":"1","desc":"tp","ranks":"0-1","backend":"nccl","enq":0,"done":0,"p2p":0,"issued":0,"ended":0,"gone":true}],'
    f'"inflight":[{PLAIN_CALL_JSON}],"inflight_more":9,"failed":[{CALL_JSON}],"idle_s":3.25,'
    '"dropped":{"spans":1,"reports":2,"records":3,"hook_errors":4},'
    f'"last":{PLAIN_CALL_JSON},"python_blocked":false,"site":"train.py:7 load","stack":"Thread 1",'
    '"exit":{"code":1,"signal":0,"clean":false,"known":true},'
    '"exception":{"type":"ValueError","message":"bad","stack":"Traceback","site":"train.py:8 f"},'
    '"thread_exceptions":'
    '[{"type":"OSError","message":"disk","stack":"Traceback","site":"io.py:3 g","thread":"loader"}],'
    '"file":"/dumps/rank_1","reason":"stall","error":"disk full"}'
)
"""Every key once, in the order in which monitors have always written them."""

FAILED_CALL = ReportedCall(
    group="a1", stream="p2p", sequence=5, op_id=6, record=41, pair_index=2, operation="recv", backend="gloo",
    input_sizes=((3, 4), ()), input_dtypes=("Float", "Long"), output_sizes=((8,),), output_dtypes=("Half",),
    input_splits=(1, 2), output_splits=None, reduce_op="sum", root=3, peer=None, tag=7, state="failed",
    timeout_ms=600_000, age_s=1.25, site="train.py:42 step", any_source=True, is_posted=True, wait_s=0.5,
    duration_s=0.01, gap_s=0.0, error="timeout", new_name="3", new_description="tp", new_ranks="0-3", awaits_all=True,
)  # fmt: skip
PLAIN_CALL = ReportedCall(
    group="a1", stream="collective", sequence=5, op_id=6, record=42, pair_index=0, operation="all_reduce",
    backend="nccl", input_sizes=((3,),), input_dtypes=("Float",), output_sizes=((3,),), output_dtypes=("Float",),
    input_splits=None, output_splits=None, reduce_op="sum", root=None, peer=None, tag=None, state="scheduled",
    timeout_ms=600_000, age_s=1.5, site="",
)  # fmt: skip
REPORT = RankReport(
    rank=1,
    number=17,
    stall_s=2.5,
    groups=(
        ReportedGroup("a1", "0", "default_pg", "0-3", "gloo", 5, 4, 3, 8, 7, is_destroyed=False, idle_s=3.2),
        ReportedGroup("b2", "1", "tp", "0-1", "nccl", 0, 0, 0, 0, 0, is_destroyed=True),
    ),
    in_flight=(PLAIN_CALL,),
    in_flight_more=9,
    failed=(FAILED_CALL,),
    idle_s=3.25,
    dropped=DropCounts(spans=1, reports=2, records=3, hook_errors=4),
    last=PLAIN_CALL,
    python_blocked=False,
    site="train.py:7 load",
    stack="Thread 1",
    exit=ReportedExit(code=1, signal=0, is_clean=False, is_known=True),
    exception=ReportedException("ValueError", "bad", "Traceback", "train.py:8 f"),
    thread_exceptions=(ReportedException("OSError", "disk", "Traceback", "io.py:3 g", "loader"),),
    file="/dumps/rank_1",
    reason="stall",
    error="disk full",
)

texts = st.text(max_size=20)
names = st.text(min_size=1, max_size=20)
counts = st.integers(0, 2**62)
integers = st.integers(-(2**62), 2**62)
seconds = st.floats(0, 1e9)
shapes = st.lists(st.lists(counts, max_size=4).map(tuple), max_size=3).map(tuple)
dtypes = st.lists(names, max_size=3).map(tuple)
splits = st.none() | st.lists(counts, max_size=4).map(tuple)
calls = st.builds(
    ReportedCall,
    texts, texts, counts, counts, counts, counts, texts, texts, shapes, dtypes, shapes, dtypes, splits, splits,
    st.none() | names, *[st.none() | integers] * 3, texts, *[st.none() | seconds] * 2, texts, st.booleans(),
    st.booleans(), *[st.none() | seconds] * 3, *[st.none() | names] * 2, texts, texts, st.booleans(),
    st.none() | seconds,
)  # fmt: skip
fingerprints = st.lists(counts, max_size=5).map(tuple)
groups = st.builds(
    ReportedGroup, names, texts, texts, texts, texts, *[counts] * 5, st.booleans(), st.none() | seconds, fingerprints
)
activities = st.builds(ReportedActivity, texts, texts, *[st.none() | seconds] * 2, st.booleans())
decisions = st.builds(ReportedDecision, texts, texts, counts, counts, counts, st.none() | integers)
call_lists = st.lists(calls, max_size=2).map(tuple)
labels = st.text(max_size=MAX_LABEL)
facts = st.builds(ReportedFact, labels, st.text(max_size=MAX_RANKS_TEXT), counts, st.none() | integers, labels)
communicators = st.builds(ReportedCommunicator, labels, counts, shapes, st.lists(facts, max_size=2).map(tuple))
odd = st.lists(communicators, max_size=2).map(tuple)
answers = st.builds(ReportedRas, st.none() | seconds, labels, counts, counts, odd, counts)
reports = st.builds(
    RankReport,
    st.integers(0, rank_report.MAX_RANK), counts, st.floats(*rank_report.STALL_SECONDS),
    st.lists(groups, max_size=2).map(tuple), call_lists, counts, call_lists, st.none() | seconds,
    st.none() | st.builds(DropCounts, *[counts] * 4), st.none() | calls, st.none() | st.booleans(), texts, texts,
    st.none() | st.builds(ReportedExit, st.none() | integers, integers, st.booleans(), st.booleans()),
    st.none() | st.builds(ReportedException, *[texts] * 5),
    st.lists(st.builds(ReportedException, *[texts] * 5), max_size=4).map(tuple), texts, texts, texts,
    st.booleans(), texts, texts, st.booleans(), st.floats(*rank_report.PEER_TIMEOUTS),
    st.lists(activities, max_size=3).map(tuple), st.none() | integers, st.none() | seconds, texts, texts, texts,
    st.lists(decisions, max_size=3).map(tuple), st.floats(*rank_report.INTERVALS), st.booleans(),
    st.none() | st.floats(0, 1), st.none() | st.builds(ReportedRange, texts, counts, counts, fingerprints, call_lists),
    st.none() | answers, dtypes, dtypes,
)  # fmt: skip


def test_a_report_is_written_as_it_always_was() -> None:
    assert build(REPORT) == REPORT_JSON


def test_a_report_written_by_hand_is_read_whole() -> None:
    assert parse(REPORT_JSON) == REPORT


@settings(max_examples=150)
@given(reports)
def test_what_is_built_is_read_back(report: RankReport) -> None:
    assert parse(build(report)) == report


def test_only_rank_number_and_groups_are_required() -> None:
    report = parse('{"v":1,"rank":0,"n":0,"groups":[]}')
    assert (report.groups, report.in_flight, report.last, report.exit, report.stall_s) == ((), (), None, None, 5.0)
    for key in ("v", "rank", "n", "groups"):
        body = {"v": 1, "rank": 0, "n": 0, "groups": []}
        del body[key]
        with pytest.raises(ValueError, match="report"):
            parse(json.dumps(body))


def test_keys_that_are_not_known_are_ignored() -> None:
    body = json.loads(REPORT_JSON)
    for part in (body, body["groups"][0], body["last"], body["exit"], body["exception"], body["dropped"]):
        part["key_of_a_later_release"] = {"a": [1]}
    assert parse(json.dumps(body)) == REPORT


def test_a_newer_version_is_refused_with_what_is_understood_and_what_to_do() -> None:
    with pytest.raises(ValueError, match="version 2, but only version 1 is understood: upgrade the collector"):
        parse('{"v":2,"rank":0,"n":0,"groups":[]}')


def test_every_version_up_to_the_newest_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_report, "VERSION", 3)
    for version in (1, 2, 3):
        assert parse(json.dumps({**json.loads(REPORT_JSON), "v": version})) == REPORT
    with pytest.raises(ValueError, match="version 4, but versions 1 to 3 are understood"):
        parse('{"v":4}')


@pytest.mark.parametrize("version", ["0", "-1", "true", '"1"', "1.0", "null", "[1]"])
def test_what_is_no_version_is_no_report(version: str) -> None:
    with pytest.raises(ValueError, match="not a rank report"):
        parse(f'{{"v":{version},"rank":0,"n":0,"groups":[]}}')


@pytest.mark.parametrize("body", ["", "[]", "null", "7", '{"v":1', "[" * 100_000, '{"v":1,"rank":0,"n":0,"groups":{}}'])
def test_what_is_no_report_is_a_value_error(body: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"v":1', "report is not JSON: "),
        ('{"v":1,"rank":' + "9" * 5_000 + "}", "report with a number of too many digits"),
    ],
)
def test_the_error_says_in_our_words_what_is_wrong(body: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(body)


def test_lone_surrogates_become_question_marks_and_pairs_stay() -> None:
    """As from ``os.fsdecode`` of a file name that is not UTF-8: no file, database or metric could hold them."""
    body = json.loads(REPORT_JSON)
    body["groups"][0]["desc"] = body["last"]["site"] = body["exception"]["message"] = "a\udcff\N{ROCKET}"
    report = parse(json.dumps(body))
    assert report.last is not None
    assert report.exception is not None
    found = {report.groups[0].description, report.last.site, report.exception.message}
    assert found == {"a?\N{ROCKET}"}


@pytest.mark.parametrize("key", ["rank", "n"])
def test_true_is_no_number(key: str) -> None:
    body = json.loads(REPORT_JSON)
    with pytest.raises(ValueError, match="without a usable"):
        parse(json.dumps({**body, key: True}))
    body["groups"][0]["enq"] = body["last"]["age_s"] = True
    report = parse(json.dumps(body))
    assert report.last is not None
    assert (report.groups[0].enqueued, report.last.age_s) == (0, None)


@settings(max_examples=100)
@given(st.data())
def test_a_value_of_another_type_counts_as_absent_and_never_raises_anything_else(data: st.DataObject) -> None:
    body: dict[str, Any] = json.loads(REPORT_JSON)
    parts = [body, *body["groups"], *body["failed"], body["last"], body["exit"], body["exception"], body["dropped"]]
    part = data.draw(st.sampled_from(parts))
    key = data.draw(st.sampled_from(sorted(part)))
    part[key] = data.draw(
        st.sampled_from([None, True, "x", -1, 2**70, 1e300, [], [[]], [None], ["x"], {}, {"id": "x"}])
    )
    with contextlib.suppress(ValueError):
        report = parse(json.dumps(body))
        assert parse(build(report)) == report


@pytest.mark.parametrize("section", [name for name in rank_report.SECTIONS if name not in OF_RAS])
def test_the_documentation_lists_every_key_with_its_meaning(section: str) -> None:
    keys = rank_report.keys(rank_report.SECTIONS[section])
    marks = {(False, True): " (required)", (True, False): "?", (False, False): ""}
    rows = [
        f"| `{key.name}` | {key.form.description}{marks[key.optional, key.required]} | {key.meaning} |" for key in keys
    ]
    text = (ROOT / "docs" / "reference" / "rank-report.md").read_text()
    chapter = text.partition(f"### Rank report: {section}\n")[2].partition("\n#")[0]
    documented = [line for line in chapter.splitlines() if line.startswith("| `") and not line.startswith("| `v`")]
    assert documented == rows


def test_no_section_has_a_key_twice() -> None:
    for section in rank_report.SECTIONS.values():
        names_ = [key.name for key in rank_report.keys(section)]
        assert len(names_) == len(set(names_))
