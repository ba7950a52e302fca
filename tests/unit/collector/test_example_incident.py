"""One incident as the code of today gives it to its readers; docs/reference/incident.md shows the webhook's."""

from __future__ import annotations

import json
import re

import pytest

from otel_fr.presentation import duration_text
from tests.support.example_incident import (
    DOCUMENT,
    SEEN_AFTER,
    WIDTH,
    Play,
    alert_of,
    section,
    terminal_of,
    webhook_of,
)
from tests.support.paths import DOCS


def test_the_document_is_up_to_date() -> None:
    assert section() in DOCUMENT.read_text(), "run make example-incident"


def test_every_reader_is_told_the_same() -> None:
    """Machine, rank, line of code and what to do, from the first sentence on; only how long ranks wait differs."""
    play = Play()
    incident = play.run()
    alert, webhook = alert_of(play)["annotations"], webhook_of(play, incident)
    sentence = webhook["incident"]["summary"]
    for fact in ("rank 2", "gpu-18", "load_shard", "data.py:40", "ranks 0, 1, 3 wait"):
        assert fact in sentence
    assert alert["summary"] == f"{sentence} since 03:11:20 UTC"
    terminal = terminal_of(play, incident)
    assert f"{sentence} for {duration_text(SEEN_AFTER)}" in " ".join(terminal.split())
    for text in (terminal, json.dumps(webhook)):
        assert "http://collector:8080/runbooks/missing_rank" in text
        assert f"http://jaeger:16686/trace/{incident.data['trace_id']}" in text
    assert max(map(len, terminal.splitlines())) <= WIDTH


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_the_guide_names_what_an_alert_has(part: str) -> None:
    play = Play()
    play.run()
    text = (DOCS / "guide" / "alerts.md").read_text()
    (line,) = re.findall(rf"^\* \*\*{part}\*\*.*?(?=^\* )", text, re.MULTILINE | re.DOTALL | re.IGNORECASE)
    assert set(alert_of(play)[part]) - {"alertname"} <= set(re.findall(r"`(\w+)`", line))
