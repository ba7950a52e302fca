"""Incidents as text for a terminal."""

from __future__ import annotations

import pytest

from otel_fr.console.incident_view import summary_line
from otel_fr.incident import IncidentHead
from otel_fr.typed_json import typed


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
