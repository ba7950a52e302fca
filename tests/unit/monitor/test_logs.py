"""What the monitor writes into the job's output."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.re import parse_env_headers

from otel_fr.monitor import logs


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Returns what was written, once the monitor's log is set up."""
    root = logging.getLogger()
    of_sdk = [logging.getLogger(name) for name in ("opentelemetry.sdk.resources", "opentelemetry.util.re")]
    for logger in (root, *of_sdk):
        monkeypatch.setattr(logger, "filters", logger.filters[:])
        monkeypatch.setattr(logger, "handlers", logger.handlers[:])
    monkeypatch.setattr(logging, "raiseExceptions", logging.raiseExceptions)
    level = root.level
    logs.configure(3)
    yield lambda: capfd.readouterr().err
    root.setLevel(level)


def test_a_message_is_one_line_that_a_terminal_does_not_act_on(written: Callable[[], str]) -> None:
    name = "pg\x1b[41m\r\nINCIDENT fake: rank 7"
    logging.getLogger("otel_fr").warning("rank 1 left %s", name)
    assert written() == "otel-fr[rank 3]: rank 1 left pg\ufffd[41m\ufffd INCIDENT fake: rank 7\n"


def test_no_message_shows_a_token_in_a_header_that_the_sdk_cannot_read(written: Callable[[], str]) -> None:
    parse_env_headers("Authorization: Bearer hR6uCw2J", liberal=True)
    said = written()
    assert "Header format invalid" in said
    assert "hR6uCw2J" not in said


def test_what_is_long_is_cut_and_bad_items_of_a_variable_are_one_line(
    written: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "one,two,three")
    for _ in range(2):
        Resource.create()
        parse_env_headers("one,two,three", liberal=True)
    logging.getLogger("otel_fr.monitor").warning("no room for job %s", 9_000 * "j")
    of_attribute, of_header, of_job = written().splitlines()
    assert "one" in of_attribute
    assert "Header format invalid" in of_header
    assert len(of_job) < logs.MAX_MESSAGE + 100


@pytest.mark.usefixtures("written")
def test_output_that_nobody_reads_does_not_stop_the_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, bytes(4_096)):
            pass
    os.set_blocking(writing, True)
    before = os.dup(2)
    os.dup2(writing, 2)
    monkeypatch.setattr(sys, "stderr", os.fdopen(2, "w", closefd=False))
    logs.configure(3)
    try:
        logging_ = threading.Thread(target=logging.getLogger("otel_fr").warning, args=("a rank hangs",), daemon=True)
        logging_.start()
        logging_.join(10.0)
        assert not logging_.is_alive()
    finally:
        os.dup2(before, 2)
        for handle in (before, reading, writing):
            os.close(handle)
