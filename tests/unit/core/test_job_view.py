"""Jobs as text: what a narrow terminal keeps, and ranks that share a line."""

from __future__ import annotations

import io
from datetime import datetime, timezone
from typing import Any

import pytest
from rich.console import Console, RenderableType

from otel_fr.console.client import JobDetail, JobHead
from otel_fr.console.job_view import job_page, jobs_table
from otel_fr.typed_json import typed

HEAD: dict[str, Any] = {
    "id": "ab", "run_id": "r", "job": "ff542033-fd85-4c4e-9181-2a21b30436c2", "job_title": "train.py (ff542033)",
    "attempt": 0, "state": "running", "world_size": 4, "ranks": {"running": 4}, "lag": 1, "late": None,
    "last_heard_at": None,
}  # fmt: skip
LATE = {"rank": 3, "seconds": 0.148, "waited": 0.31}


def shown(what: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), highlight=False, width=width, color_system=None)
    with console.capture() as captured:
        console.print(what)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize(
    ("changed", "columns"),
    [
        ({}, "JOB STATE RANKS NOT RUNNING WAITING HEARD"),
        ({"late": LATE}, "JOB STATE RANKS WAITING LATE HEARD"),
        ({"late": LATE, "ranks": {"running": 3, "silent": 1}}, "JOB STATE RANKS NOT RUNNING WAITING HEARD"),
    ],
)
def test_a_narrow_terminal_has_late_ranks_in_place_of_those_that_do_not_run(
    changed: dict[str, Any], columns: str
) -> None:
    jobs = [typed(JobHead, {**HEAD, **changed})]
    head, row = shown(jobs_table(jobs, {}, 80), 80)
    assert head.split() == columns.split()
    assert row.startswith("train.py (ff542033)/0 ")
    assert ("rank 3: 148 ms, 31 %" in row) is ("LATE" in columns)
    wide = shown(jobs_table(jobs, {("ff542033-fd85-4c4e-9181-2a21b30436c2", "r"): 47.0}, 120), 120)
    assert wide[0].split() == ["JOB", "STATE", "RANKS", "NOT", "RUNNING", "WAITING", "LAG", "LATE", "LAST", "REPORT"]
    assert "47.0 s" in wide[1]


@pytest.mark.parametrize(
    ("width", "whole"),
    [
        (40, ["incident", "1019/1024", "67 min"]),
        (80, ["incident", "1019/1024", "67 min", " ago"]),
        (
            200,
            [HEAD["job_title"], "incident", "1019/1024", "1 killed, 2 raised, 2 silent", "67 min", "rank 3: 148 ms"],
        ),
    ],
)
def test_the_name_is_cut_and_not_the_state(width: int, whole: list[str]) -> None:
    ranks = {"running": 1019, "killed": 1, "raised": 2, "silent": 2}
    now = datetime.now(tz=timezone.utc).isoformat()
    job = {**HEAD, "state": "incident", "world_size": 1024, "ranks": ranks, "late": LATE, "last_heard_at": now}
    jobs = [typed(JobHead, one) for one in (job, {**job, "ranks": {"running": 8}})]
    lines = shown(jobs_table(jobs, {(HEAD["job"], "r"): 67 * 60.0}, width), width)
    assert len(lines) == 3
    assert [text for text in whole if text not in lines[1]] == []


def test_runs_of_one_name_show_their_ids_and_hosts() -> None:
    one = {**HEAD, "job_title": "llama", "run_id": "0123456789abcdef", "hosts": ["n0"]}
    other = {**one, "run_id": "fedcba9876543210", "hosts": ["n1", "n2", "n3", "n4"]}
    jobs = [typed(JobHead, job) for job in (one, other, {**one, "attempt": 1})]
    names = [line.partition("  ")[0] for line in shown(jobs_table(jobs, {}, 200), 200)[1:]]
    assert names == ["llama/0 (01234567, n0)", "llama/0 (fedcba98, n1, n2, n3, ...)", "llama/1"]


def test_ranks_that_have_passed_one_limit_share_a_line() -> None:
    section, beat = (["section", "loading", age, 30.0] for age in (45.0, 47.0)), ["heartbeat", "", 70.0, 60.0]
    columns = {name: [None] * 4 for name in ("step", "waits", "late")}
    ranks = {"rank": [0, 1, 2, 3], "state": ["running"] * 4, "how": [""] * 4, "tally": {"running": 4}, **columns}
    ranks["overdue"] = [None, *section, beat]
    job = typed(JobDetail, {**HEAD, "groups": [], "ranks": ranks})
    lines = shown(job_page(job, None), 80)
    assert "overdue      rank 3: no heartbeat for 70.0 s (limit 60.0 s)" in lines
    assert "             ranks 1, 2: section loading open for 47.0 s (limit 30.0 s)" in lines


def test_ranks_that_wait_in_one_call_share_a_line() -> None:
    """Of a large job, only the ranks that differ are listed; the calls say how many are in them."""
    call = {
        "operation": "all_reduce",
        "sequence_id": 7,
        "group": 0,
        "seconds": 5.0,
        "count": 99_999,
        "ranks": "0-3,5-9",
    }
    columns = {name: [None] for name in ("step", "waits", "late", "overdue")}
    ranks = {
        "rank": [4],
        "state": ["killed"],
        "how": ["signal 9"],
        "tally": {"running": 99_999, "killed": 1},
        **columns,
    }
    group = {"name": "0", "description": "default_pg"}
    link = {"hosts": ["n0", "n2"], "seconds": 0.41}
    known = {"groups": [group], "ranks": ranks, "waiting": [call], "steps": [40, 42], "slow_links": [link]}
    lines = shown(job_page(typed(JobDetail, {**HEAD, **known}), None), 100)
    assert "waiting      ranks 0-3, 5-9 (of 99999) in all_reduce number 7 of default_pg: 5.0 s" in lines
    assert "slow links   n0 and n2: 0.4 s for a round trip" in lines
    assert "step         40 to 42" in lines
    assert "not running  rank 4: killed, signal 9" in lines
