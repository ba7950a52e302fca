"""Options of a collector that really starts, or refuses to."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from otel_fr_collector import loading
from otel_fr_collector.network.address import Address
from otel_fr_collector.settings import Settings

from tests.support.certificates import Certificates
from tests.support.collector_process import running
from tests.support.commands import otel_fr
from tests.support.otlp_messages import spans
from tests.support.settings import load_settings
from tests.support.waiting import wait_for


def test_check_prints_settings_that_have_the_same_effect_and_no_secrets(tmp_path: Path) -> None:
    options = ["--webhook", "https://hooks.example.com/services/T0/s3cret", "--stop-seconds", "3"]
    options += ["--alertmanager", "http://me:s3cret@am:9093"]
    done = otel_fr("collector", "--check", *options, OTEL_FR_COLLECTOR_QUIET="true")
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in done.stdout
    again = load_settings(file=done.stdout, folder=tmp_path)
    assert (again.quiet, again.stop_seconds, again.grpc) == (True, 3.0, Address("127.0.0.1", 4317))
    assert again.webhook == ("https://hooks.example.com/...",)
    plain = load_settings(file=loading.show(Settings()), folder=tmp_path)
    for field in dataclasses.fields(Settings):
        if field.name not in ("given", "otlp_http"):
            assert getattr(plain, field.name) == getattr(Settings(), field.name), field.name


def test_check_reads_every_file_and_names_all_that_cannot_be_used(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs")
    other = Certificates(tmp_path / "other")
    tokens = tmp_path / "tokens"
    tokens.write_text("one two\n")
    done = otel_fr(
        "collector",
        "--check",
        *("--tls-cert", str(certificates.cert), "--tls-key", str(other.key), "--tokens", str(tokens)),
        *("--forward-ca", str(tmp_path / "nowhere.pem"), "--webhook-secret-file", str(tmp_path / "none")),
        *("--data", str(tokens / "folder")),
    )
    assert done.returncode == 2
    assert done.stdout == ""
    for part in ("server.pem", "line 1 is not TOKEN", "cannot write to", "tokens is not a folder"):
        assert part in done.stderr
    for option, name in (("--forward-ca", "nowhere.pem"), ("--webhook-secret-file", "none")):
        assert f"{option} {tmp_path / name}: No such file or directory" in done.stderr
    assert all(line.startswith("otel-fr collector: ") for line in done.stderr.splitlines())
    assert otel_fr("collector", "--check", *certificates.server_options(clients=True)).returncode == 0


def test_check_starts_nothing_and_makes_nothing(tmp_path: Path) -> None:
    data, incidents = tmp_path / "data", tmp_path / "incidents.jsonl"
    assert otel_fr("collector", "--check", "--data", str(data), "--incidents", str(incidents)).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_the_log_can_be_lines_of_json(tmp_path: Path) -> None:
    options = ("--log-format", "json", "--stop-seconds", "2", "--forward", "grpc://127.0.0.1:1")
    with running(tmp_path, *options) as collector:
        collector.post("/v1/traces", spans(1))
        assert wait_for(lambda: "requests wait" in collector.err_file.read_text())
        assert collector.stop() == 0
        lines = [line for line in collector.err_file.read_text().splitlines() if not line.startswith("otel-fr")]
    records = [json.loads(line) for line in lines]
    assert {"time", "level", "logger", "message"} <= set(records[0])
    assert any(record["level"] == "warning" for record in records)
