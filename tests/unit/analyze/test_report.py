"""The report at a prompt, in a notebook, and as data frames."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import otel_fr
from otel_fr.analyze import Report, load
from otel_fr.incident import FIELDS
from tests.support.torch_files import entry, group, one_missing, write


def test_the_package_has_the_analyzer(tmp_path: Path) -> None:
    report = otel_fr.analyze.load(one_missing(tmp_path))
    assert isinstance(report, Report)
    assert "analyze" in dir(otel_fr)


def test_a_report_is_one_screen(tmp_path: Path) -> None:
    report = load(one_missing(tmp_path))
    text = repr(report)
    assert text.splitlines()[1] == "4 files, 4 ranks, 1 process group, 11 calls"
    assert f"missing_rank: {report.findings[0].summary}" in text
    assert "culprit rank 2: its last call was at /job/train.py:41 step" in text


def test_a_cell_shows_the_verdict_and_the_progress(tmp_path: Path) -> None:
    html = load(one_missing(tmp_path))._repr_html_()
    assert "<strong>missing_rank: rank 2</strong>" in html
    assert "<td>rank 2</td><td>culprit</td>" in html
    assert "2/2 -1" in html


def test_dumps_and_entries_are_short(tmp_path: Path) -> None:
    calls = [entry(number, "all_reduce", number + 1) for number in range(1000)]
    report = load(write(tmp_path, {0: calls, 1: calls}))
    assert report.run is not None
    assert "and 997 more" in repr(report.run.dumps[0])
    assert len(repr(report.run.dumps[0])) < 4000


def test_without_pandas_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'otel-fr\[pandas\]'"):
        load(one_missing(tmp_path)).to_pandas()


def frames(folder: Path) -> Any:
    pytest.importorskip("pandas")
    return load(folder).to_pandas()


def test_data_frames(tmp_path: Path) -> None:
    found = frames(one_missing(tmp_path))
    assert list(found) == ["calls", "ranks", "groups", "progress", "incidents", "device_calls"]
    calls = found["calls"]
    assert len(calls) == 11
    assert calls["rank"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3]
    assert str(calls["created"].dtype) == "datetime64[ns, UTC]"
    assert calls["ended"].isna().sum() == 3
    assert calls["duration_s"].dropna().unique().tolist() == [0.5]
    assert set(calls["input_bytes"]) == {64}
    assert calls.groupby("state").size().to_dict() == {"completed": 8, "scheduled": 3}
    assert calls["root"].isna().all()
    ranks = found["ranks"].set_index("rank")
    assert ranks["role"].to_dict() == {0: "waiting", 1: "waiting", 2: "culprit", 3: "waiting"}
    assert ranks["calls"].tolist() == [3, 3, 2, 3]
    assert found["groups"][["name", "size", "ranks"]].values.tolist() == [["0", 4, [0, 1, 2, 3]]]
    assert found["progress"].set_index("rank")["behind"].to_dict() == {0: 0, 1: 0, 2: 1, 3: 0}
    (incident,) = found["incidents"].to_dict("records")
    assert set(incident) == set(FIELDS)
    assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [2])
    assert incident["detected_at"].year >= 2026


def test_peers_of_messages_are_global_ranks_and_calls_are_in_order(tmp_path: Path) -> None:
    pair = {"0": group("0", "default_pg", range(4)), "1": group("1", "pair", (2, 3))}
    common: dict[str, Any] = {"process_group": ("1", "pair"), "pg_id": 1}
    ranks = {
        2: [
            entry(0, "all_reduce", 1),
            entry(1, "nccl:send 0->1", 0, p2p_seq_id=1, **common),
            entry(2, "all_reduce", 2),
        ],
        3: [
            entry(0, "all_reduce", 1),
            entry(1, "nccl:recv 1<-0", 0, p2p_seq_id=1, **common),
            entry(2, "all_reduce", 2),
        ],
    }
    calls = frames(write(tmp_path, ranks, **pair))["calls"]
    assert calls["operation"].tolist() == ["all_reduce", "send", "all_reduce", "all_reduce", "recv", "all_reduce"]
    assert calls["peer"].dropna().tolist() == [3, 2]
    assert calls[calls["stream"] == "p2p"]["group_name"].tolist() == ["1", "1"]
