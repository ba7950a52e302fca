"""What each form of the report shows, whatever the files hold."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import Report, load
from otel_fr.analyze.output.calls_file import write_calls
from otel_fr.analyze.output.database import write_database
from otel_fr.analyze.output.entries_table import entries_text
from otel_fr.analyze.output.markdown import to_markdown
from otel_fr.analyze.output.overview import View, grid
from otel_fr.analyze.output.page import to_html
from otel_fr.analyze.output.perfetto import write_trace
from otel_fr.analyze.output.screen import MAX_LINES, MAX_WIDTH
from otel_fr.analyze.output.text import to_text
from otel_fr.analyze.output.timeline import timeline
from otel_fr.dumps.safe_parse import parse
from otel_fr.match import Category
from tests.support.evidence import NO_CALL, finding
from tests.support.paths import DUMPS
from tests.support.torch_files import entry, group, hostile_folder, one_missing, write
from tests.support.trace_events import Trace


def test_the_first_line_is_the_verdict(tmp_path: Path) -> None:
    report = load(one_missing(tmp_path))
    verdict = f"missing_rank: {report.findings[0].summary}"
    assert to_text(report).splitlines()[0].startswith(verdict)
    assert to_markdown(report, View()).startswith("### missing\\_rank: rank 2\n")
    assert f"<h1>{verdict}" in to_html(report, View())


def test_nothing_in_a_file_steers_a_terminal(tmp_path: Path) -> None:
    report = load(hostile_folder(tmp_path))
    for text in (to_text(report, View(stacks=True)), entries_text(report, View(verbose=True, stacks=True))):
        assert "evil" in text
        assert all(line.isprintable() for line in text.split("\n"))
        assert not any(line.startswith("# ") for line in text.split("\n"))


def test_nothing_in_a_file_is_live_in_markdown(tmp_path: Path) -> None:
    text = to_markdown(load(hostile_folder(tmp_path)), View(stacks=True))
    assert "evil" in text
    outside = [line for line in text.splitlines() if "`" not in line.replace("\\`", "")]
    assert any("owned" in line for line in outside)
    for line in outside:
        assert "<script" not in line.replace("\\<script", "")
        assert "@team" not in line
        assert "http://" not in line
        assert "*@" not in line.replace("\\*@", "")
    assert all(line.isprintable() for line in text.replace("\u2060", "").split("\n"))


def test_nothing_in_a_file_is_live_in_the_page(tmp_path: Path) -> None:
    page = to_html(load(hostile_folder(tmp_path)), View(stacks=True))
    assert "owned" in page
    assert page.count("<script") == page.count("</script>") == 2
    page.encode("utf-8")


def test_many_files_are_listed_in_few_lines(tmp_path: Path) -> None:
    report = load(one_missing(tmp_path, world_size=120, culprit=77))
    text = to_text(report)
    assert len(text.splitlines()) < 20
    assert "ranks 0-119: 120 files (2 to 3 calls each; pytorch)" in text
    assert len(to_text(report, View(verbose=True)).splitlines()) > 120
    (odd, _) = grid(report, View()).rows
    assert (odd.ranks, odd.role, odd.cells[0][0].text) == ([77], "culprit", "2/2 -1")


def test_long_lists_of_ranks_are_shortened_and_say_how_many(tmp_path: Path) -> None:
    """Two of every seven ranks wait for rank 0, so that no stride folds them."""
    waiting = [rank for rank in range(1, 400) if rank % 7 in (1, 3)]
    members = [0, *waiting]
    ranks = {rank: [entry(0, "all_reduce", 1, state="scheduled")] if rank else [] for rank in members}
    report = load(write(tmp_path, ranks, **{"0": group("0", "default_pg", members)}))
    assert f"({len(waiting)} in all)" in report.findings[0].summary
    for text in (to_text(report), to_markdown(report, View())):
        assert max(map(len, text.splitlines())) < 400
        assert f"({len(waiting)} in all)" in text.replace("\\", "")


def test_among_many_ranks_the_one_that_differs_is_shown(tmp_path: Path) -> None:
    ranks = {r: [entry(0, "all_reduce", 1, sizes=[[15 if r == 50 else 16]], state="scheduled")] for r in range(60)}
    report = load(write(tmp_path, ranks))
    lines = to_text(report).splitlines()
    at = lines.index("  rank 50: input_sizes = [[15]]")
    assert lines[at + 1] == "  ranks 0-49, 51-59: input_sizes = [[16]]"
    assert len(lines) < 16
    for text in (to_markdown(report, View()), to_html(report, View())):
        assert "rank 50: [[15]]" in text


def test_what_is_shown_can_be_chosen_and_the_verdict_is_still_that_of_all(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {
            rank: [
                entry(0, "all_reduce", 1, process_group=("1", "tp")),
                *([entry(1, "all_reduce", 1, state="scheduled")] if rank != 3 else []),
            ]
            for rank in range(4)
        },
        **{"0": group("0", "default_pg", range(4)), "1": group("1", "tp", range(4))},
    )
    report = load(folder)
    view = View(ranks=frozenset([0, 1]), groups=frozenset(["tp"]))
    assert report.findings[0].summary in to_text(report, view)
    shown = grid(report, view)
    assert shown.columns == ["tp (1)"]
    assert [row.ranks for row in shown.rows] == [[0, 1]]
    assert [row["rank"] for row in timeline(report, view)["rows"]] == [0, 1]
    table = entries_text(report, view)
    assert "Rank 0" in table
    assert "Rank 2" not in table
    assert table.count("all_reduce") == 2


def test_the_cap_bounds_the_faults_shown(tmp_path: Path) -> None:
    pairs = {str(n): group(str(n), "pair", (2 * n, 2 * n + 1)) for n in range(5)}
    ranks = {
        rank: [] if rank % 2 else [entry(0, "all_reduce", 1, process_group=(str(rank // 2), "pair"), state="scheduled")]
        for rank in range(10)
    }
    report = load(write(tmp_path, ranks, **pairs))
    assert len(report.findings) == 5
    text = to_text(report, View(cap=2))
    assert text.count("missing_rank: ") == 2
    assert "and 3 more faults" in text


def test_a_rank_without_a_file_is_reported_unless_that_is_switched_off() -> None:
    report = load(DUMPS / "nt05_timeout_dump_only_rank0")
    assert "no file for rank 1" in to_text(report)
    assert "no file for rank 1" not in to_text(report, View(incomplete=True))


def test_stacks_are_printed_when_asked_for(tmp_path: Path) -> None:
    report = load(one_missing(tmp_path))
    assert "/job/train.py:9 main" not in to_text(report)
    text = to_text(report, View(stacks=True))
    at = text.index("call stack of ranks 0, 1, 3, innermost first:")
    assert text.index("/job/train.py:42 step", at) < text.index("/job/train.py:9 main", at)


def test_what_is_overdue_is_named_without_a_field(tmp_path: Path) -> None:
    """It has values, but no field in which ranks differ."""
    found = finding(Category.SECTION_OVERRUN, **NO_CALL, waiting_ranks=(), values={1: "section load, limit 2.0 s"})
    report = dataclasses.replace(load(one_missing(tmp_path, 2, 1)), findings=[found])
    assert "  rank 1: section load, limit 2.0 s" in to_text(report).splitlines()


# The database.

TABLES = ("groups", "memberships", "tracebacks", "collectives", "ncclcalls")


def _rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as connection:
            connection.row_factory = sqlite3.Row
            found = {t: [dict(row) for row in connection.execute(f"SELECT * FROM {t}")] for t in TABLES}
        nested = {"input_sizes", "output_sizes", "expected_ranks", "collective_frames", "missing_ranks", "sizes"}
        nested |= {"mismatch_collectives", "dtypes"}
        for rows in found.values():
            for row in rows:
                row.update({key: json.loads(row[key]) for key in nested & set(row)})
                if "pass_check" in row:
                    row["pass_check"] = bool(row["pass_check"])
        return found
    data = json.loads(path.read_text()) if path.suffix == ".json" else pickle.loads(path.read_bytes())
    return {t: [dict(zip(data["columns"][t], row, strict=True)) for row in data[t]] for t in TABLES}


def test_the_three_forms_of_the_database_say_the_same(tmp_path: Path) -> None:
    report = load(one_missing(tmp_path / "files"))
    found = {}
    for name in ("db.json", "db.pickle", "db.sqlite"):
        write_database(report, tmp_path / name)
        found[name] = _rows(tmp_path / name)
    tables = found["db.json"]
    assert found["db.pickle"] == tables
    assert found["db.sqlite"] == tables
    assert [row["desc"] for row in tables["groups"]] == ["default_pg"]
    assert [row["global_rank"] for row in tables["memberships"]] == [0, 1, 2, 3]
    last = tables["collectives"][-1]
    assert (last["pass_check"], last["missing_ranks"], last["type_of_mismatch"]) == (False, [2], "missing_rank")
    assert [row["pass_check"] for row in tables["collectives"]] == [True, True, False]
    calls = [row for row in tables["ncclcalls"] if row["collective_id"] == last["id"]]
    assert [row["global_rank"] for row in calls] == [0, 1, 3]
    stacks = {row["id"]: row["frames"] for row in tables["tracebacks"]}
    assert stacks[calls[0]["traceback_id"]] == "/job/train.py:42 step\n/job/train.py:9 main"


def test_the_pickle_holds_plain_values_only(tmp_path: Path) -> None:
    write_database(load(hostile_folder(tmp_path / "files")), tmp_path / "db.pkl")
    assert set(parse((tmp_path / "db.pkl").read_bytes())) >= set(TABLES)


# The timeline.


def test_ranks_whose_clocks_differ_are_aligned_by_what_they_did_together(tmp_path: Path) -> None:
    """Rank 1's clock is 100 s ahead; by it, rank 1 enters the second collective 0.25 s before rank 0."""
    calls: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for rank, shift in ((0, 0), (1, 100_000_000_000)):
        for number in range(3):
            call = entry(number, "all_reduce", number + 1)
            early = 250_000_000 if rank == 1 and number == 1 else 0
            call["time_created_ns"] += shift - early
            call["time_discovered_completed_ns"] += shift
            calls[rank].append(call)
    rows = timeline(load(write(tmp_path, calls)), View())["rows"]
    starts = {row["rank"]: [call[4] for call in row["calls"]] for row in rows}
    assert starts == {0: [0, 1_000_000, 2_000_000], 1: [0, 750_000, 2_000_000]}


def test_a_collective_stands_in_one_column_for_all_its_ranks(tmp_path: Path) -> None:
    """Rank 1 works in a group of its own first; rank 2 comes with the last one only."""
    alone = [entry(n, "all_reduce", n + 1, process_group=("1", "alone")) for n in range(3)]
    folder = write(
        tmp_path,
        {
            0: [entry(0, "all_reduce", 1), entry(1, "all_reduce", 2)],
            1: [*alone, entry(3, "all_reduce", 1), entry(4, "all_reduce", 2)],
        },
        **{"0": group("0", "default_pg", [0, 1]), "1": group("1", "alone", [1])},
    )
    rows = timeline(load(folder), View())["rows"]
    assert {row["rank"]: [call[3] for call in row["calls"]] for row in rows} == {0: [3, 4], 1: [0, 1, 2, 3, 4]}


# Every form of any folder.


def many_faults(folder: Path) -> Path:
    pairs = {str(n): group(str(n), "pair", (2 * n, 2 * n + 1)) for n in range(200)}
    ranks = {}
    for number in range(400):
        fields: dict[str, Any] = {"process_group": (str(number // 2), "pair"), "state": "scheduled"}
        ranks[number] = [entry(0, "all_reduce", 1, sizes=[[4 + number % 2]], **fields)]
    return write(folder, ranks, **pairs)


MADE: dict[str, Callable[[Path], Path]] = {
    "hostile": hostile_folder,
    "many faults": many_faults,
    "none": lambda folder: folder,
}
KNOWN = sorted(path.name for path in DUMPS.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", [*KNOWN, *MADE])
def test_every_form_of_any_folder_can_be_made(name: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    report = load(MADE[name](tmp_path / "files") if name in MADE else DUMPS / name)
    assert (report.run is None) is (name == "none")
    for form in (to_text, to_markdown, to_html, entries_text):
        assert form(report, View(verbose=True, stacks=True)) or report.run is None
    write_database(report, tmp_path / "db.sqlite")
    broken = {row["type_of_mismatch"] for row in _rows(tmp_path / "db.sqlite")["collectives"]} - {None}
    in_calls = {f.category.value for f in report.findings if any(c.name == f.key for c in report.collectives)}
    assert broken == in_calls
    for suffix in (".csv", *([".parquet"] if find_spec("pyarrow") else [])):
        write_calls(report, tmp_path / f"calls{suffix}")
        assert (tmp_path / f"calls{suffix}").stat().st_size > 0
    is_one_screen(report)
    calls = sum(len(calls) for of in report.collectives for calls in of.calls.values())
    parts: list[str] = []
    write_trace(report, View(), parts.append)
    trace = Trace("".join(parts))
    assert sum("number" in item.args for item in trace.slices) == calls
    assert trace.arrows or not any(found.waiting_ranks for found in report.findings if found.culprit_ranks)
    if find_spec("pandas"):
        frames = report.to_pandas()
        rows = {table: len(frames[table]) for table in ("calls", "incidents", "ranks")}
        assert rows == {"calls": calls, "incidents": len(report.incidents), "ranks": len(report.ranks)}


def is_one_screen(report: Report) -> None:
    """At a prompt; and in a notebook a cell without script."""
    lines = repr(report).split("\n")
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= MAX_WIDTH
    assert all(line.isprintable() for line in lines)
    assert len(repr(report.run)) < 200
    html = report._repr_html_()
    assert len(html) < 60_000
    assert "<script" not in html
