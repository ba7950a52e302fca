"""Incidents as text for a terminal."""

from __future__ import annotations

import io
from argparse import Namespace
from typing import cast

import pytest
from rich.console import Console

from otel_fr.console.client import IncidentDetail
from otel_fr.console.incident_view import incident_page, summary_line
from otel_fr.console.incidents import _matches
from otel_fr.incident import IncidentHead
from otel_fr.incident_rows import rows
from otel_fr.stacks import NATIVE_HEADING
from otel_fr.typed_json import typed
from tests.support.incident_data import incident_data


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("firing", "rank 1 did not join all_reduce number 7; ranks 0, 2 wait for "),
        ("resolved", "while it fired: rank 1 did not join all_reduce number 7; ranks 0, 2 wait"),
    ],
)
def test_the_summary_of_an_incident_that_is_over_is_said_to_be_of_then(state: str, said: str) -> None:
    head = {
        "id": "c2631e8890abcdef", "run_id": "r", "job": "train", "job_title": "train", "attempt": 0,
        "category": "missing_rank", "culprit_ranks": [1], "caused_by": None, "detected_at": "2026-11-23T14:03:17Z",
        "state": state, "summary": "rank 1 did not join all_reduce number 7; ranks 0, 2 wait",
        "waiting_since": "2026-11-23T14:03:12Z", "consequence_count": None, "revision": 1,
    }  # fmt: skip
    assert summary_line(typed(IncidentHead, head)).startswith(said)


def test_a_job_may_be_named_as_lists_show_it() -> None:
    data = {"job": "train\tone", "job_title": "train\tone", "state": "firing"}
    for name in ("train\tone", "train one"):
        assert _matches(cast("IncidentHead", data), Namespace(job=name, state=None))


def test_an_incident_shows_the_native_stacks_of_a_culprit_beside_the_merged_stacks() -> None:
    waiting, culprit = ["/job/train.py:9 main"], ["/job/train.py:8 main", "/job/data.py:3 load"]
    frames = '  File "/job/data.py", line 3 in load\n  File "/job/train.py", line 8 in main\n'
    native = "Thread 7 (idle): MainThread\n    read (libc.so.6)\n\nDataLoader worker, process 9:\n    fetch (data.py:5)"
    found = incident_data(
        stacks={"1": f"Thread 0x1 (most recent call first):\n{frames}\n{NATIVE_HEADING}\n{native}"},
        stack_groups=[{"ranks": [0, 2], "frames": waiting}, {"ranks": [1], "frames": culprit}],
    )
    console = Console(file=io.StringIO(), width=120)
    console.print(incident_page(typed(IncidentDetail, {**found, "links": {}, "consequences": []}), now=0.0))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "read (libc.so.6)" in shown
    assert "DataLoader worker, process 9" in shown
    assert waiting[0] in shown
    assert shown.count("load") == 1, "the culprit's frames are not shown twice"


def test_an_incident_of_another_version_is_shown() -> None:
    culprit = {"rank": 1, "host": "node-1", "error": "", "rack": "r7"}
    data = incident_data(culprits=[culprit], places={"1": {"host": "node-1", "local_rank": 3, "rack": "r7"}})
    assert ("culprits", "rank 1 (node-1, local rank 3): a.py:1 f") in list(rows(data))
