"""``--output`` to .csv and .parquet: the calls as one table."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from otel_fr.analyze import load
from otel_fr.analyze.output.calls_file import write_calls
from otel_fr.analyze.tables import CALL_COLUMNS
from otel_fr.cli import main
from tests.support.torch_files import entry, group, one_missing, write


def test_csv_has_a_row_for_each_call(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    write_calls(load(one_missing(tmp_path / "files")), path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(CALL_COLUMNS)
    assert len(rows) == 11
    assert (rows[0]["created"], rows[0]["started"]) == (
        "2026-09-21T14:13:20.000000000Z",
        "2026-09-21T14:13:20.000001000Z",
    )
    last = rows[-1]
    assert (last["rank"], last["state"], last["ended"], last["duration_s"]) == ("3", "scheduled", "", "")
    assert (last["input_sizes"], last["input_bytes"], last["root"]) == ("[[4, 4]]", "64", "")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["calls.csv", "files"]


def test_parquet_has_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "calls.parquet"
    report = load(one_missing(tmp_path / "files"))
    write_calls(report, path)
    table = parquet.read_table(path)
    assert table.column_names == list(CALL_COLUMNS)
    assert table.num_rows == 11
    assert [str(table.schema.field(name).type) for name in ("rank", "created", "duration_s", "root", "site")] == [
        "int64",
        "timestamp[ns, tz=UTC]",
        "double",
        "int64",
        "string",
    ]
    rows = table.to_pylist()
    assert (rows[-1]["ended"], rows[-1]["duration_s"], rows[-1]["root"]) == (None, None, None)
    assert rows[0]["site"] == "/job/train.py:40 step"
    frame = pytest.importorskip("pandas").read_parquet(path)
    assert frame["created"].equals(report.to_pandas()["calls"]["created"])


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_calls(load(one_missing(tmp_path / "files")), path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["calls.csv", "files"]


@pytest.mark.parametrize("suffix", [".csv", ".json", ".sqlite", ".pkl"])
def test_a_pipe_or_device_is_not_replaced(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, pipe = one_missing(tmp_path / "files"), tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    assert main(["analyze", str(folder), "-o", str(pipe)]) == 2
    assert pipe.is_fifo()
    shown = capsys.readouterr()
    assert "missing_rank: rank 2" in shown.out
    assert f"--output {pipe}: not a regular file; nothing was written" in shown.err


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "calls.csv").symlink_to(tmp_path / "data" / "real.csv")
    write_calls(load(one_missing(tmp_path / "files")), tmp_path / "calls.csv")
    assert (tmp_path / "calls.csv").is_symlink()
    assert len((tmp_path / "data" / "real.csv").read_text().splitlines()) == 12


def test_a_trace_is_not_confused_with_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, path = one_missing(tmp_path / "files"), tmp_path / "trace.json"
    assert main(["analyze", str(folder), "--format", "perfetto", "-o", str(path)]) == 2
    assert f"--format perfetto > {path}" in capsys.readouterr().err
    assert not path.exists()


def test_no_text_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    names = ["=1+1", "@SUM(1)", "+1", "-1", "\t=1"]
    groups = {name: group(name, name, (0,)) for name in names}
    calls = [entry(number, "all_reduce", 1, process_group=(name, name)) for number, name in enumerate(names)]
    write_calls(load(write(tmp_path / "files", {0: calls}, **groups)), path)
    with path.open(newline="") as file:
        fields = [field for row in csv.DictReader(file) for field in row.values()]
    assert {f"'{name}" for name in names} <= set(fields)
    assert not [field for field in fields if field[:1] in "=+-@\t" and field]
