"""The Python API: `otel_fr.analyze.load`, on good files and on any."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otel_fr.analyze import FAULT, UNUSABLE, load
from otel_fr.analyze.output.database import write_database
from otel_fr.analyze.output.entries_table import entries_text
from otel_fr.analyze.output.markdown import to_markdown
from otel_fr.analyze.output.otlp_traces import span_batches
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.page import to_html
from otel_fr.analyze.output.text import to_json, to_text
from tests.support.rings import RankRing, signature
from tests.support.torch_files import entry, group, one_missing, write


def test_a_report_has_what_a_program_needs(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = load(one_missing(tmp_path), progress=lambda done, total: seen.append((done, total)))
    assert report.status == FAULT
    assert [incident["category"] for incident in report.incidents] == ["missing_rank"]
    assert list(report.ranks) == [0, 1, 2, 3]
    (of_all,) = report.groups.values()
    assert (of_all.description, of_all.ranks) == ("default_pg", (0, 1, 2, 3))
    first, second, third = report.collectives
    assert (first.operation, first.sequence_id, first.completed, first.missing_ranks) == ("all_reduce", 1, True, ())
    assert (third.completed, third.missing_ranks, third.name) == (False, (2,), report.findings[0].key)
    assert second.calls[2][0].site == "/job/train.py:41 step"
    assert second.calls[2][0].frames == ("/job/train.py:41 step", "/job/train.py:9 main")
    assert {total for _, total in seen} == {4}
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_sends_are_paired_with_their_receives(tmp_path: Path) -> None:
    for rank in (0, 1):
        ring = RankRing(tmp_path / "ring", rank, 2)
        for tag in (0, 0, 3):
            ring.call(signature("recv" if rank else "send", peer=1 - rank, tag=tag))
        ring.write(tmp_path / "files")
    pairs = load(tmp_path / "files").collectives
    assert [(pair.operation, pair.members, sorted(pair.calls)) for pair in pairs] == [("send", (0, 1), [0, 1])] * 3
    assert all(pair.completed for pair in pairs)


def test_nothing_there_raises_and_nothing_readable_does_not(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none: no such file or folder"):
        load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="x: no such file or folder"):
        load(__file__ + "/x")
    report = load(tmp_path)
    assert (report.status, list(report.collectives), report.incidents, dict(report.ranks)) == (UNUSABLE, [], [], {})


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who may read everything."""
    folder = one_missing(tmp_path)
    denied = folder / "denied"
    denied.mkdir()
    scandir = os.scandir

    def refusing(path: str | Path) -> Iterator[os.DirEntry[str]]:
        if Path(path) == denied:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(PermissionError, match=f"^{denied}: permission denied$"):
        load(denied)
    report = load(folder)
    assert report.status == FAULT
    ((path, text),) = [(problem.path, problem.text) for problem in report.problems]
    assert path == str(denied)
    assert "Permission denied" in text


def test_incidents_of_two_jobs_whose_files_name_no_run_differ(tmp_path: Path) -> None:
    first = load(one_missing(tmp_path / "one")).incidents
    again = load(one_missing(tmp_path / "again")).incidents
    other = load(one_missing(tmp_path / "other", time_created_ns=1_800_000_000 * 10**9)).incidents
    assert first[0]["id"] == again[0]["id"]
    assert first[0]["trace_id"] == again[0]["trace_id"]
    assert first[0]["id"] != other[0]["id"]
    assert first[0]["trace_id"] != other[0]["trace_id"]


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
numbers = st.sampled_from([0, 1, 2, 3, -1, 1 << 62, 1 << 63, (1 << 64) - 1])
FIELDS = {
    "collective_seq_id": numbers,
    "p2p_seq_id": numbers,
    "record_id": numbers,
    "time_created_ns": st.one_of(numbers, anything),
    "time_discovered_completed_ns": st.one_of(numbers, anything),
    "duration_ms": anything,
    "timeout_ms": anything,
    "input_sizes": st.sampled_from([[[4]], [[(1 << 64) - 1]], [], [[]], [[-1, 2]], 7, None]),
    "output_sizes": st.sampled_from([[[4]], [[8], [8]], [[]], "x"]),
    "input_dtypes": st.sampled_from([["Float"], ["\ud800"], [], None]),
    "profiling_name": st.sampled_from(["nccl:all_reduce", "send 0->1", "recv 1<-?", "nccl:send 9->0", "\ud800", ""]),
    "process_group": st.sampled_from([("0", "default_pg"), ("1", "pair"), ("9", "\ud800\x1b"), ("0", "")]),
    "state": st.sampled_from(["completed", "scheduled", "\x00"]),
    "retired": st.booleans(),
    "is_p2p": st.booleans(),
    "frames": st.sampled_from([[], None, [{}], [{"filename": "\ud800", "line": (1 << 64) - 1, "name": None}]]),
    "thread_name": anything,
}
call = st.tuples(
    st.fixed_dictionaries({}, optional=FIELDS), st.dictionaries(st.sampled_from(sorted(FIELDS)), anything, max_size=2)
).map(lambda parts: parts[0] | parts[1])
KEYS = st.sampled_from(["entries", "pg_config", "pg_status", "otel_fr", "version"])


@given(
    ranks=st.lists(st.lists(call, max_size=6), min_size=1, max_size=3),
    top=st.dictionaries(KEYS, anything | st.lists(anything | call, max_size=3), max_size=1),
)
@example(ranks=[[{"time_created_ns": (1 << 64) - 1, "state": "scheduled", "retired": False}], []], top={})
@example(ranks=[[{"collective_seq_id": 1 << 63, "state": "scheduled", "retired": False}], []], top={})
@example(ranks=[[{"duration_ms": 1.7976931348623157e308, "time_created_ns": 1}], []], top={})
@example(ranks=[[{"duration_ms": 1.7976931348623157e308, "time_discovered_completed_ns": None}], []], top={})
@example(ranks=[[{"duration_ms": -1.7976931348623157e308, "time_created_ns": 1}], []], top={})
def test_whatever_the_files_hold_every_form_can_be_made(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[list[dict[str, Any]]], top: dict[str, Any]
) -> None:
    """``top``: what stands in rank 0's file in the place of its entries, its groups, ..."""
    tmp_path = tmp_path_factory.mktemp("example")
    groups = {"0": group("0", "default_pg", range(len(ranks))), "1": group("1", "pair", [0, 1])}
    files = {
        rank: [{**entry(n, "all_reduce", n + 1), **call} for n, call in enumerate(of)] for rank, of in enumerate(ranks)
    }
    first = write(tmp_path / "files", files, **groups) / "trace_0"
    first.write_bytes(pickle.dumps({**pickle.loads(first.read_bytes()), **top}))
    report = load(tmp_path / "files")
    assert report.run is not None or report.problems
    view = View(verbose=True, stacks=True)
    for form in (to_text, to_markdown, to_html, entries_text):
        form(report, view).encode("utf-8")
    to_json(report).encode("utf-8")
    for name in ("db.json", "db.sqlite", "db.pickle"):
        write_database(report, tmp_path / name)
    pickle.loads((tmp_path / "db.pickle").read_bytes())
    for batch in span_batches(report):
        assert all(spans.SerializeToString() for spans in batch)
    for path in (tmp_path / "files").iterdir():
        path.unlink()
