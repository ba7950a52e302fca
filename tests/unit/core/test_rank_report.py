"""The rank report's schema against reports written by hand, against the documentation, and against itself."""

from __future__ import annotations

import contextlib
import json
import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect
from msgspec.structs import replace

from otel_fr import rank_report
from otel_fr.incident import timestamp
from otel_fr.rank_report import (
    SECTIONS,
    DropCounts,
    RankReport,
    ReportedActivity,
    ReportedCall,
    ReportedException,
    ReportedExit,
    ReportedGroup,
    build,
    fitted,
    names_of,
    parse,
    section_of,
    sections_of,
    to_object,
)
from otel_fr.rank_report.bounds import MAX_SECONDS
from tests.support.any_reports import reports, sections
from tests.support.paths import ROOT

OF_RAS = {"RAS", "COMMUNICATOR", "FACT"}
"""What NCCL's RAS has answered stands in `otel_fr.rank_report.ras` alone: no verdict rests on it."""

CALL_JSON = (
    '{"g":"a1","k":"p2p","seq":5,"rec":41,"op":"recv","st":"failed","op_id":6,"i":2,"be":"gloo",'
    '"in":[[3,4],[]],"idt":["Float","Long"],"out":[[8]],"odt":["Half"],"isp":[1,2],'
    '"ro":"sum","root":3,"tag":7,"timeout_ms":600000,"age_s":1.25,"site":"train.py:42 step",'
    '"any":true,"posted":true,"wait_s":0.5,"dur_s":0.01,"gap_s":0.0,"err":"timeout","ng":"3","ngd":"tp","ngr":"0-3","nga":true}'
)
PLAIN_CALL_JSON = (
    '{"g":"a1","k":"collective","seq":5,"rec":42,"op":"all_reduce","st":"scheduled","op_id":6,"be":"nccl",'
    '"in":[[3]],"idt":["Float"],"out":[[3]],"odt":["Float"],"ro":"sum","timeout_ms":600000,"age_s":1.5}'
)
REPORT_JSON = (
    '{"v":1,"rank":1,"n":17,"groups":[{"id":"a1","name":"0","desc":"default_pg","ranks":"0-3",'
    '"backend":"gloo","enq":5,"done":4,"p2p":3,"issued":8,"ended":7,"idle_s":3.2},'
    '{"id":"b2","name":"1","desc":"tp","ranks":"0-1","backend":"nccl","gone":true}],"stall_s":2.5,'
    f'"inflight":[{PLAIN_CALL_JSON}],"inflight_more":9,"failed":[{CALL_JSON}],"idle_s":3.25,'
    '"dropped":{"spans":1,"reports":2,"records":3,"hook_errors":4},'
    f'"last":{PLAIN_CALL_JSON},"python_blocked":false,"site":"train.py:7 load","stack":"Thread 1",'
    '"exit":{"code":1},'
    '"exception":{"type":"ValueError","message":"bad","stack":"Traceback","site":"train.py:8 f"},'
    '"thread_exceptions":'
    '[{"type":"OSError","message":"disk","stack":"Traceback","site":"io.py:3 g","thread":"loader"}],'
    '"file":"/dumps/rank_1","reason":"stall","error":"disk full"}'
)
"""In the order of the schema, without what has its default."""

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


def test_a_report_is_written_in_the_order_of_the_schema_without_what_has_its_default() -> None:
    assert build(REPORT) == REPORT_JSON


def test_a_report_written_by_hand_is_read_whole() -> None:
    assert parse(REPORT_JSON) == REPORT


@given(reports)
def test_what_is_built_is_read_back(report: RankReport) -> None:
    assert parse(build(report)) == report == fitted(report)


@given(sections(RankReport, within=False))
def test_whatever_is_told_is_built_within_the_bounds_that_a_reader_checks(report: RankReport) -> None:
    read = parse(build(report))
    assert read == fitted(report) == fitted(read)


@given(reports, sections(RankReport, within=False), st.sampled_from(RankReport.__struct_fields__))
def test_a_value_out_of_bounds_costs_no_other_field(report: RankReport, other: RankReport, name: str) -> None:
    spoilt = replace(report, **{name: getattr(other, name)})
    assert replace(parse(build(spoilt)), **{name: getattr(report, name)}) == report


def test_what_is_out_of_bounds_is_cut_or_left_out() -> None:
    call = replace(
        PLAIN_CALL, input_sizes=((1,) * 65,) * 257, output_sizes=((2**64,),), peer=2**63, site="\udcff" * 2_000
    )
    group = ReportedGroup("a1", enqueued=2**64, completed=-1, idle_s=math.nan)
    read = parse(
        build(RankReport(1, 2, (group,), in_flight=(call,) * 65, stall_s=math.inf, step_s=math.inf, step=2**63))
    )
    assert (read.groups[0].enqueued, read.groups[0].completed, read.groups[0].idle_s) == (2**63 - 1, 0, None)
    assert (read.stall_s, read.step_s, read.step, len(read.in_flight)) == (86_400.0, None, None, 64)
    found = read.in_flight[0]
    assert (found.input_sizes, found.output_sizes) == (((1,) * 64,) * 256, ((2**63 - 1,),))
    assert (found.peer, found.site) == (None, "?" * 1_024)


def test_a_report_that_is_too_long_is_told_without_texts_of_groups_and_sizes_of_calls() -> None:
    call = replace(PLAIN_CALL, input_sizes=((2**40,) * 64,) * 256)
    group = ReportedGroup("a1", "0", ranks=",".join(map(str, range(0, 2**18, 3))), enqueued=5)
    report = RankReport(1, 2, (group,) * 20, in_flight=(call,) * 64, stack="Thread")
    assert len(msgspec.json.encode(report)) > rank_report.MAX_LENGTH
    read = parse(build(report))
    assert (read.groups, read.stack) == ((ReportedGroup("a1", enqueued=5),) * 20, "Thread")
    assert (len(read.in_flight), read.in_flight[0].site, read.in_flight[0].input_sizes) == (64, call.site, ())


def test_only_rank_number_and_groups_are_required() -> None:
    report = parse('{"v":1,"rank":0,"n":0,"groups":[]}')
    assert report == RankReport(0, 0, ())
    assert report.stall_s == 5.0
    for key in ("rank", "n", "groups"):
        body = {"v": 1, "rank": 0, "n": 0, "groups": []}
        del body[key]
        with pytest.raises(ValueError, match=f"missing required field `{key}`"):
            parse(json.dumps(body))


def test_keys_that_are_not_known_are_ignored() -> None:
    body = json.loads(REPORT_JSON)
    for part in (body, body["groups"][0], body["last"], body["exit"], body["exception"], body["dropped"]):
        part["key_of_a_later_release"] = {"a": [1]}
    assert parse(json.dumps(body)) == REPORT


def test_a_newer_version_is_refused_with_what_is_understood_and_what_to_do() -> None:
    with pytest.raises(ValueError, match="version 2, but only version 1 is understood: upgrade the collector"):
        parse('{"rank":0,"n":[],"v":2,"groups":{}}')


@pytest.mark.parametrize("version", ["0", "-1", "true", '"1"', "1.0", "null", "[1]"])
def test_what_is_no_version_is_no_report(version: str) -> None:
    with pytest.raises(ValueError, match=r"unusable rank report: .*\$\.v"):
        parse(f'{{"v":{version},"rank":0,"n":0,"groups":[]}}')


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "report is not JSON: "),
        ('{"v":1', "report is not JSON: "),
        ('{"v":1,"rank":NaN}', "report is not JSON: "),
        ("\ud800", "report is not JSON: "),
        ('{"v":1,"rank":1,"n":1,"groups":[],"site":"\\ud800"}', "report is not JSON: "),
        ('{"v":1,"x":' + "[" * 100_000, "report is nested too deep"),
        (" " * (rank_report.MAX_LENGTH + 1), "report of more than 4194304 characters"),
        ("[]", "unusable rank report: Expected `object`, got `array`"),
        ("null", "unusable rank report: "),
        ('{"v":1,"rank":' + "9" * 5_000 + "}", r"unusable rank report: .*\$\.rank"),
        ('{"v":1,"rank":0,"n":0,"groups":{}}', r"unusable rank report: .*\$\.groups"),
        ('{"v":1,"rank":0,"n":0,"groups":[{"id":7}]}', r"unusable rank report: .*\$\.groups\[0\]\.id"),
    ],
    ids=range(12),
)
def test_the_error_says_what_is_wrong(body: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(body)


def test_what_began_as_long_ago_as_a_report_may_say_has_a_date() -> None:
    """By any clock since 1970. An incident without one was stored, and could not be read after a restart."""
    assert timestamp(-MAX_SECONDS) is not None
    call = {"g": "g", "k": "collective", "seq": 1, "rec": 0, "op": "barrier", "st": "scheduled"}
    body: dict[str, Any] = {"v": 1, "rank": 0, "n": 1, "groups": [], "last": {**call, "age_s": MAX_SECONDS}}
    assert parse(json.dumps(body)).last is not None
    with pytest.raises(ValueError, match="age_s"):
        parse(json.dumps({**body, "last": {**call, "age_s": 10 * MAX_SECONDS}}))


VALUES: list[Any] = [
    None, True, 0, 1, 1.5, -1, 61, 2**70, 1e300, "", "x", "x" * 2_000, [], [[]], [[1]], [None], ["x"],
    ["x" * 65], [[2**70]], [1] * 300, [[1]] * 257, [[1] * 65], {}, {"id": "x"}, {"id": ""}, [{}] * 65,
]  # fmt: skip


@given(st.data())
def test_a_value_of_another_type_or_out_of_bounds_is_a_value_error(data: st.DataObject) -> None:
    body: dict[str, Any] = json.loads(REPORT_JSON)
    parts = [body, *body["groups"], *body["failed"], body["last"], body["exit"], body["exception"], body["dropped"]]
    part = data.draw(st.sampled_from(parts))
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(st.sampled_from(VALUES))
    with contextlib.suppress(ValueError):
        report = parse(json.dumps(body))
        assert parse(build(report)) == report


def test_of_a_file_the_sections_that_are_damaged_are_left_out() -> None:
    section = ReportedActivity("section", "load", 1.0, 9.0)
    items = [to_object(section), {"name": "x"}, {"kind": 7}, 7, None, {"kind": "heartbeat", "later": 1}]
    assert sections_of(ReportedActivity, items, 9) == (section, ReportedActivity("heartbeat"))
    assert sections_of(ReportedActivity, items, 1) == (section,)
    assert sections_of(ReportedActivity, {"kind": "section"}, 9) == ()
    assert section_of(DropCounts, {"hook_errors": 2}) == DropCounts(hook_errors=2)
    damaged: list[object] = [None, [], {"hook_errors": "x"}, {"hook_errors": -1}, {"\ud800": 1}]
    for item in damaged:
        assert section_of(DropCounts, item) is None
    assert (names_of(["a", "b"]), names_of(["a", 7]), names_of(None)) == (("a", "b"), (), ())


def described(kind: inspect.Type) -> str:
    """A type as the documentation names it."""
    if isinstance(kind, inspect.Metadata):
        title: str | None = (kind.extra_json_schema or {}).get("title")
        return title or described(kind.type)
    if isinstance(kind, inspect.UnionType):
        return described(kind.types[0])
    if isinstance(kind, inspect.VarTupleType):
        of = described(kind.item_type)
        return f"list of {of}" if of.isupper() else "list of " + re.sub(r"^\w+", r"\g<0>s", of)
    if isinstance(kind, inspect.StructType):
        return next(name for name, section in SECTIONS.items() if section is kind.cls)
    words = {inspect.IntType: "integer", inspect.FloatType: "number", inspect.StrType: "text"}
    return words.get(type(kind), "boolean")


@pytest.mark.parametrize("section", [name for name in SECTIONS if name not in OF_RAS])
def test_the_documentation_lists_every_key_with_its_meaning(section: str) -> None:
    info = inspect.type_info(SECTIONS[section])
    assert isinstance(info, inspect.StructType)
    rows = []
    for one in info.fields:
        assert isinstance(one.type, inspect.Metadata)
        meaning = (one.type.extra_json_schema or {})["description"]
        mark = " (required)" if one.required else ""
        rows.append(f"| `{one.encode_name}` | {described(one.type)}{mark} | {meaning} |")
    text = (ROOT / "docs" / "reference" / "rank-report.md").read_text()
    chapter = text.partition(f"### Rank report: {section}\n")[2].partition("\n#")[0]
    documented = [line for line in chapter.splitlines() if line.startswith("| `") and not line.startswith("| `v`")]
    assert documented == rows
