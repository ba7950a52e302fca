"""The monitor asks NCCL's RAS when a fault shows. There is no NCCL here, so a server plays the documented protocol."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_fr.dumps.nccl_ras import is_one, read_answer
from otel_fr.monitor.nccl import ras_client as module
from otel_fr.monitor.nccl.ras_client import ADDRESS, PAUSE, RasError, RasWatch, ask_ras, ras_address
from otel_fr.rank_report.ras import ReportedRas
from tests.support.monitored_rank import play
from tests.support.otlp_sink import grpc_sink
from tests.support.ras_server import RasServer, answer, communicator, missing, rank, ras_server, without_comma
from tests.support.waiting import PATIENCE, wait_for

PID = 4711
DIAGNOSTICS = """node042:12345 NCCL DIAG === RAS Diagnostics ===
node042:12345 NCCL DIAG [OK]   ECC: no uncorrected volatile errors across 8 ranks in comm 0x1234
node042:12345 NCCL DIAG [INFO] NCCL environment: mismatch across 8 ranks in comm 0x1234 for NCCL_DEBUG
node042:12345 NCCL DIAG [INFO] NCCL environment: NCCL_DEBUG=WARN on rank(s) {4,5,6,7}
node042:12345 NCCL DIAG RAS diagnostics completed in 12.3 ms across 8 RAS peers
"""


@pytest.fixture
def server() -> Iterator[RasServer]:
    with ras_server() as found:
        found.text = answer(communicator([rank(0, PID)], [missing(1, 4712)]))
        yield found


def asked(server: RasServer, folder: Path, pid: int = PID) -> RasWatch:
    watch = RasWatch(server.address, pid, lambda *_: True)
    watch.ask(lambda: folder, 100.0)
    watch.wait(30)
    return watch


def told(server: RasServer, folder: Path, later: float = 0.0) -> ReportedRas:
    found = asked(server, folder).take(time.monotonic() + later)
    assert found is not None
    return found


def test_the_answer_is_saved_beside_the_files_and_can_be_read(server: RasServer, tmp_path: Path) -> None:
    asked(server, tmp_path / "files")
    (path,) = (tmp_path / "files").iterdir()
    assert path.name == f"otel_fr_nccl_ras_{socket.gethostname()}.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert is_one(path)
    (one,) = read_answer(path).communicators
    assert [(part.rank, part.is_missing) for part in one.ranks] == [(0, False), (1, True)]
    greeting = ["CLIENT PROTOCOL 2", "TIMEOUT 1"]
    assert server.commands == [*greeting, "SET FORMAT json", "STATUS", *greeting, "DIAGNOSTICS"]


def test_an_answer_that_lacks_a_comma_is_saved_and_told(server: RasServer, tmp_path: Path) -> None:
    server.text = without_comma(server.text)
    with pytest.raises(json.JSONDecodeError):
        json.loads(server.text)
    assert [(fact.kind, fact.ranks) for fact in told(server, tmp_path).odd[0].facts] == [("silent", "1")]


def test_what_nccls_diagnostics_say_may_need_a_look_is_told_once(server: RasServer, tmp_path: Path) -> None:
    server.diagnostics = DIAGNOSTICS
    watch = asked(server, tmp_path)
    found = watch.take(time.monotonic())
    assert found is not None
    assert found.diagnostics.splitlines() == [
        "NCCL environment: mismatch across 8 ranks in comm 0x1234 for NCCL_DEBUG",
        "NCCL environment: NCCL_DEBUG=WARN on rank(s) {4,5,6,7}",
    ]
    assert (tmp_path / f"otel_fr_nccl_ras_{socket.gethostname()}.txt").read_text() == DIAGNOSTICS
    assert watch.take(time.monotonic()) is None
    assert server.commands.count("DIAGNOSTICS") == 1


@pytest.mark.parametrize("answered", [None, "BUSY: diagnostics already in progress\n"])
def test_without_diagnostics_the_status_is_told(server: RasServer, tmp_path: Path, answered: str | None) -> None:
    server.diagnostics = answered
    found = told(server, tmp_path)
    assert (found.diagnostics, len(found.odd)) == ("", 1)
    assert not list(tmp_path.glob("*.txt"))


def test_what_is_odd_is_told_with_its_age(server: RasServer, tmp_path: Path) -> None:
    found = told(server, tmp_path, later=2.0)
    assert 2.0 <= (found.age_s or 0.0) < 60.0
    assert [(fact.kind, fact.ranks) for fact in found.odd[0].facts] == [("silent", "1")]


def test_an_answer_about_the_run_before_is_saved_and_not_told(server: RasServer, tmp_path: Path) -> None:
    """Its communicators do not exist any more."""
    watch = RasWatch(server.address, PID, lambda *_: True)
    for run, now in (("run 0", 100.0), ("run 1", 101.0 + PAUSE)):
        watch.ask(lambda: tmp_path, now, run)
        watch.wait(30)
        assert (watch.take(time.monotonic(), "run 1") is None) == (run == "run 0")
    assert any(tmp_path.glob("otel_fr_nccl_ras_*.json"))


def test_a_large_answer_is_saved_and_not_told(
    server: RasServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TOLD", len(server.text) - 1)
    assert asked(server, tmp_path).take(time.monotonic()) is None
    assert any(tmp_path.glob("otel_fr_nccl_ras_*.json"))


def test_it_is_asked_at_most_once_a_minute_and_by_one_monitor(server: RasServer, tmp_path: Path) -> None:
    watch = asked(server, tmp_path)
    watch.ask(lambda: tmp_path, 100.0 + PAUSE / 2)
    watch.wait(30)
    assert server.commands.count("STATUS") == 1
    watch.ask(lambda: tmp_path, 101.0 + PAUSE)
    watch.wait(30)
    assert server.commands.count("STATUS") == 2
    other = RasWatch(server.address, PID, lambda *_: False)
    other.ask(lambda: tmp_path, 100.0)
    other.wait(30)
    assert server.commands.count("STATUS") == 2


def test_the_answer_of_another_job_is_not_kept(
    server: RasServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "otel_fr.monitor"):
        asked(server, tmp_path / "files", pid=1)
    assert "the answer is of another job" in caplog.text
    assert not (tmp_path / "files").exists()


def test_a_process_that_does_not_answer_is_not_the_only_one_that_is_asked(
    server: RasServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.silent = 2
    assert ask_ras(server.address, seconds=PATIENCE).decode() == server.text
    monkeypatch.setattr(module, "_HANDSHAKE_SECONDS", 0.2)
    server.silent = module.TRIES
    with pytest.raises(RasError, match="no answer in time"):
        ask_ras(server.address)


def test_an_older_nccl_a_closed_port_and_another_server_give_no_answer(server: RasServer) -> None:
    server.knows_json = False
    with pytest.raises(RasError, match=r"older than 2\.28"):
        ask_ras(server.address)
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()
    with pytest.raises(RasError, match="nothing listens there"):
        ask_ras(closed)


def test_a_server_that_answers_in_drops_is_given_up_in_time(server: RasServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HANDSHAKE_SECONDS", 0.5)
    server.drop_seconds = 0.1
    with pytest.raises(RasError, match="no answer in time"):
        ask_ras(server.address, seconds=1.0)
    assert server.drops < 100


@pytest.mark.parametrize("answered", ["", "[" * 5000, "{" * 5000, "\0", "whole[:-9]"])
def test_what_is_not_a_whole_answer_is_not_kept(
    server: RasServer, tmp_path: Path, answered: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.text = server.text[:-9] if answered == "whole[:-9]" else answered
    with caplog.at_level(logging.INFO, "otel_fr.monitor"):
        asked(server, tmp_path / "files")
    assert "the answer is incomplete" in caplog.text
    assert not (tmp_path / "files").exists()


def test_an_answer_is_bounded_in_size(server: RasServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(RasError, match="more than"):
        ask_ras(server.address)


def test_where_it_is_asked_follows_nccls_variables() -> None:
    assert ras_address({}) == ADDRESS == ("localhost", 28028)
    assert ras_address({"NCCL_RAS_ENABLE": "0"}) is None
    assert ras_address({"NCCL_RAS_ADDR": "10.1.2.3:12345"}) == ("10.1.2.3", 12345)
    assert ras_address({"NCCL_RAS_ADDR": "[::1]:28028"}) == ("::1", 28028)
    for wrong in ("nowhere", ":1", "host:", "host:x", "host:123456"):
        assert ras_address({"NCCL_RAS_ADDR": wrong}) is None


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_monitor_asks_it_for_a_job_on_nccl_when_a_file_is_asked_for_and_reports_the_answer(
    server: RasServer, tmp_path: Path, backend: str
) -> None:
    host, port = server.address
    env = {"BACKEND": backend, "NCCL_RAS_ADDR": f"{host}:{port}", "OTEL_FR_STALL_SECONDS": "60"}
    with grpc_sink() as sink, play(tmp_path, {**env, "OTEL_EXPORTER_OTLP_ENDPOINT": sink.address}) as played:
        server.text = answer(communicator([rank(0, played.process.pid)], [missing(1, 4712)]))
        played.do("issue", n=1, backend=backend)
        played.do("say", message={"cmd": "dump", "reason": "request"})
        folder = tmp_path / "dumps"
        assert wait_for(lambda: (folder / "otel_fr_rank_0").exists())
        if backend == "nccl":
            assert wait_for(lambda: any(folder.glob("otel_fr_nccl_ras_*.json")))
            ras = sink.wait(lambda: [one.report["ras"] for one in sink.events if "ras" in one.report], what="RAS")
            assert [(fact["kind"], fact["ranks"]) for fact in ras[0]["odd"][0]["facts"]] == [("silent", "1")]
        assert played.end("leave", clean=True) == 0
    assert ("STATUS" in server.commands) is (backend == "nccl")
