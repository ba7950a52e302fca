"""Texts from jobs and receivers as outlets and logs show them: no control characters, no forged lines, bounded."""

from __future__ import annotations

import io
import json
import logging
import time
import unicodedata
from dataclasses import replace
from typing import cast

import pytest
from otel_fr_collector import gauges
from otel_fr_collector.incidents import bounds
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.bounds import bounded, first_texts
from otel_fr_collector.logs import MAX_MESSAGE, MAX_STACK, _Json, _Text
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.outlets import grafana
from otel_fr_collector.outlets.alertmanager import Alertmanager
from otel_fr_collector.outlets.log import LogLines
from otel_fr_collector.outlets.terminal import Terminal

from otel_fr.incident import CollectorIncidentData
from otel_fr.match import Group
from tests.support.incident_data import incident_change
from tests.support.told import new_run, rank_in

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\r\nINCIDENT rank_dead: rank 9\u2028\u202e<b>\x00\t!"
FORGED = "INCIDENT rank_dead: rank 9"
HOSTILE = incident_change(
    "job " + EVIL,
    summary="rank 1 raised " + EVIL,
    group=Group("g", "name " + EVIL, "tp " + EVIL, (0, 1)),
    call_sites={0: "a.py:1 " + EVIL, 1: "b.py:2 " + EVIL},
    stacks={1: "File a" + EVIL},
    field="dtype",
    values={0: "Float" + EVIL, 1: "Half"},
)


def is_clean(text: str, kept: str = "\n\t") -> bool:
    return all(unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") or char in kept for char in text)


def test_the_terminal_shows_no_control_characters_and_no_forged_lines() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.publish(HOSTILE, 0.0, has_files=True)
    terminal.step(0.0, final=True)
    data = HOSTILE.data.copy()
    data["flight_recorder_files"] = {"1": "/dumps/" + EVIL}
    terminal.publish(replace(HOSTILE, data=data), 1.0)
    shown = out.getvalue()
    assert is_clean(shown)
    assert [line for line in shown.splitlines() if not line.startswith(("  ", "INCIDENT missing_rank"))] == []
    assert shown.count(FORGED) > 3  # it is shown, in the middle of our own lines


def test_a_terminal_without_unicode_does_not_end_the_output() -> None:
    raw = io.BytesIO()
    terminal = Terminal(io.TextIOWrapper(raw, encoding="ascii"))
    for number in ("1", "2"):
        terminal.publish(incident_change("j\N{ROCKET}b", number), 0.0, has_files=True)
    terminal.step(0.0, final=True)
    assert raw.getvalue().count(rb"job j\U0001f680b attempt 0") == 2


def test_alerts_and_annotations_have_no_control_characters() -> None:
    outlet = Alertmanager(["http://127.0.0.1:9"], Metrics())
    outlet.publish(HOSTILE)
    (alert,) = outlet._firing.values()
    assert all(is_clean(value, kept="") for _, value in alert.labels)
    assert all(is_clean(value) for value in alert.annotations.values())
    assert all(is_clean(tag, kept="") for tag in grafana.tags_of(HOSTILE.incident))
    text = grafana.text_of(HOSTILE.incident, {})
    assert is_clean(text)
    assert "<b>" not in text


def test_the_labels_of_an_alert_are_those_of_the_metric() -> None:
    """Alertmanager's inhibition rules compare them (deploy/alertmanager/alertmanager.yml)."""
    labels = HOSTILE.incident.labels
    assert gauges.group_label(HOSTILE.data["process_group"]) == labels["process_group"]


@pytest.mark.parametrize("formatter", [_Text("%(asctime)s %(levelname)s %(message)s"), _Json()])
def test_a_log_record_with_hostile_text_is_one_line(formatter: logging.Formatter) -> None:
    quoted = "a\n2026-01-01 ERROR forged\x1b[2J"
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "rejected: %s", (quoted,), None)
    line = formatter.format(record)
    assert len(line.splitlines()) == 1
    assert is_clean(line, kept="")


def test_a_log_record_with_a_stack_keeps_its_lines() -> None:
    try:
        raise ValueError("bad \x1b[2J")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), (type(error), error, error.__traceback__))
    text = _Text("%(message)s").format(record)
    assert text.startswith("failed\nTraceback")
    assert is_clean(text)


@pytest.mark.parametrize("formatter", [_Text("%(message)s"), _Json()])
def test_what_a_log_record_quotes_is_bounded(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("x" * 1_000_000)
    except ValueError as error:
        cause = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "rejected: %s, the end", ("x" * 1_000_000,), cause)
    text = formatter.format(record)
    assert len(text) < MAX_MESSAGE + MAX_STACK + 200
    assert "the end" in text


def test_the_log_line_of_an_incident_of_the_largest_job_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    culprits = [rank for rank in range(100_000) if rank % 3]
    data = {**HOSTILE.data, "culprit_ranks": culprits}
    LogLines().publish(replace(HOSTILE, data=cast("CollectorIncidentData", data)))
    (line,) = caplog.messages
    assert len(line) < 10_000
    assert "what_to_do=" in line


def test_the_text_of_an_incident_of_the_largest_job_is_bounded() -> None:
    ranks = range(16_384)
    finding = replace(
        HOSTILE.incident.finding,
        summary="s" * 100_000,
        culprit_ranks=tuple(ranks),
        stacks=dict.fromkeys(ranks, "x" * 65_536),
        call_sites=dict.fromkeys(ranks, "y" * 1_024),
        values=dict.fromkeys(ranks, "z" * 4_096),
    )
    book = IncidentBook(time.time)
    run = new_run()
    for rank in ranks:
        state = rank_in(run, rank)
        state.file = "/" * 4_096
    for number in range(2):  # opened, then renewed
        changed = replace(finding, stuck_on=("host", "device")[number])
        changes = book.update(run, [changed], now=0.0, wall=1.0, enqueued={}, over=())
        data = changes[0].data
        most = bounds.MAX_STACKS + bounds.MAX_SITES + bounds.MAX_VALUES + bounds.MAX_FILES
        assert len(json.dumps(data)) < most + 100 * len(ranks)
        assert len(data["call_sites"]) == len(data["values"]) == len(ranks)
        assert set(data["stacks"]) == {str(rank) for rank in range(bounds.MAX_STACKS // 65_536)}
    assert not book.add_files(run, 0.0)


def test_the_text_of_an_ordinary_incident_is_not_changed() -> None:
    ranks = range(4_096)
    finding = replace(
        HOSTILE.incident.finding,
        stacks=dict.fromkeys(ranks[:64], "x" * 4_096),
        call_sites=dict.fromkeys(ranks, "/projects/resnet50/train/loop.py:1234 train_one_step"),
        values=dict.fromkeys(ranks, "[[4096, 11008]]"),
    )
    assert bounded(finding) == finding
    assert first_texts({2: "ab", 1: "c"}, 3) == {2: "ab", 1: "c"}
    assert first_texts({2: "ab", 1: "c"}, 2) == {1: "c"}
