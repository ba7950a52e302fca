"""The list of jobs of ``otel-fr top``: what a reader needs most is whole, however narrow the terminal."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from rich.console import Console

from otel_fr.console.client import JobHead
from otel_fr.console.job_view import jobs_table

JOB: JobHead = {
    "id": "1",
    "run_id": "r",
    "job": "ce77243c-fc32-4df4-a5c5-f02feaea43fb",
    "job_title": "a script with a long name.py (ce77243c)",
    "attempt": 12,
    "state": "incident",
    "world_size": 1024,
    "hosts": ["n0"],
    "ranks": {"running": 1019, "killed": 1, "raised": 2, "silent": 2},
    "groups": 3,
    "lag": 3,
    "late": {"rank": 1000, "seconds": 0.148, "waited": 0.31},
    "last_heard_at": datetime.now(tz=timezone.utc).isoformat(),
    "rates": None,
}


@pytest.mark.parametrize(
    ("width", "whole"),
    [
        (40, ["incident", "1019/1024", "67 min"]),
        (80, ["incident", "1019/1024", "67 min", " ago"]),
        (
            200,
            [JOB["job_title"], "incident", "1019/1024", "1 killed, 2 raised, 2 silent", "67 min", "rank 1000: 148 ms"],
        ),
    ],
)
def test_the_name_is_cut_and_not_the_state(width: int, whole: list[str]) -> None:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(jobs_table([JOB, {**JOB, "ranks": {"running": 8}}], {(JOB["job"], "r"): 67 * 60.0}, width))
    lines = captured.get().splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= width
    for text in whole:
        assert text in lines[1]


def test_runs_of_one_name_show_their_ids_and_hosts() -> None:
    one: JobHead = {**JOB, "job_title": "llama", "attempt": 0, "run_id": "0123456789abcdef"}
    other: JobHead = {**one, "run_id": "fedcba9876543210", "hosts": ["n1", "n2", "n3", "n4"]}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(jobs_table([one, other, {**one, "attempt": 1}], {}, 200))
    names = [line.partition("  ")[0] for line in captured.get().splitlines()[1:]]
    assert names == ["llama/0 (01234567, n0)", "llama/0 (fedcba98, n1, n2, n3, ...)", "llama/1"]
