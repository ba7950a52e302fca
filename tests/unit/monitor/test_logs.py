"""What the monitor writes into the job's output."""

from __future__ import annotations

import logging

from otel_fr.monitor import logs


def test_a_message_is_one_line_that_a_terminal_does_not_act_on() -> None:
    root = logging.getLogger()
    before, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    try:
        formatter = logs.configure(3).formatter
    finally:
        root.handlers[:], logging.raiseExceptions = before, raises
        root.setLevel(level)
    assert formatter is not None
    name = "pg\x1b[41m\r\nINCIDENT fake: rank 7"
    record = logging.LogRecord("otel_fr", logging.WARNING, "", 1, "rank 1 left %s", (name,), None)
    assert formatter.format(record) == "otel-fr[rank 3]: rank 1 left pg\ufffd[41m\ufffd INCIDENT fake: rank 7"
