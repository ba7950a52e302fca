"""Options: flags before environment before file before defaults, checked before anything starts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from otel_fr_collector import loading
from otel_fr_collector.loading import SettingsError
from otel_fr_collector.network.address import Address
from otel_fr_collector.redaction import clean
from otel_fr_collector.settings import ENV_PREFIX, Settings, parse_size, reference

from tests.support.certificates import Certificates
from tests.support.collector_process import running
from tests.support.otlp_messages import spans
from tests.support.paths import DOCS
from tests.support.waiting import PATIENCE, wait_for

PREFIX = ENV_PREFIX
REFERENCE = DOCS / "collector.md"


def load(
    words: str = "", env: dict[str, str] | None = None, file: str | None = None, folder: Path | None = None
) -> Settings:
    parser = argparse.ArgumentParser()
    loading.add_arguments(parser)
    arguments = words.split()
    if file is not None:
        assert folder is not None
        path = folder / "collector.toml"
        path.write_text(file)
        arguments += ["--config", str(path)]
    return loading.load(vars(parser.parse_args(arguments)), env or {})


def run_check(*options: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "otel_fr.cli", "collector", "--check", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **env})


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = 'grpc = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\nlog_level = "debug"\nquiet = true\n'
    env = {PREFIX + "GRPC": "127.0.0.1:3", PREFIX + "HTTP": "127.0.0.1:4"}
    found = load("--grpc 127.0.0.1:5 --no-quiet", env, file, tmp_path)
    assert (found.grpc.port, found.http.port, found.log_level) == (5, 4, "debug")
    assert not found.quiet
    assert found.log_format == "text"


def test_lists_may_be_given_everywhere(tmp_path: Path) -> None:
    assert load("--forward grpc://a --forward grpc://b").forward == ("grpc://a", "grpc://b")
    assert load(env={PREFIX + "FORWARD": "grpc://a, grpc://b"}).forward == ("grpc://a", "grpc://b")
    assert load(file='forward = ["grpc://a", "grpc://b", "grpc://a"]', folder=tmp_path).forward == (
        "grpc://a",
        "grpc://b",
    )
    assert load(file="client-rate = 7", folder=tmp_path).client_rate == 7


def test_every_problem_is_named_at_once_with_the_nearest_right_name(tmp_path: Path) -> None:
    env = {PREFIX + "FORWAD": "grpc://a", PREFIX + "STOP_SECONDS": "soon"}
    with pytest.raises(SettingsError) as caught:
        load("--tls-cert x --forward-ratio 2", env, 'alert-manager = "http://a"\n[tokens]\nx = 1\n', tmp_path)
    text = str(caught.value)
    assert "did you mean OTEL_FR_COLLECTOR_FORWARD?" in text
    assert "did you mean alertmanager?" in text
    assert "OTEL_FR_COLLECTOR_STOP_SECONDS: 'soon' is not a number" in text
    assert "--forward-ratio: '2' is not a number from 0 to 1" in text
    assert "--tls-cert needs --tls-key" in text
    assert "tokens in" in text
    assert len(text.splitlines()) == 6


def test_what_kubernetes_puts_into_the_environment_is_no_mistake() -> None:
    names = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_OTLP_GRPC", "PORT", "PORT_4317_TCP", "PORT_4317_TCP_ADDR")
    assert load(env={PREFIX + name: "tcp://10.0.0.1:4317" for name in names}) == Settings()


def test_otlp_over_http_listens_beside_grpc_unless_told_otherwise() -> None:
    assert str(load().otlp_http_address) == "127.0.0.1:4318"
    assert str(load("--grpc 0.0.0.0:9000").otlp_http_address) == "0.0.0.0:4318"
    assert str(load("--grpc [::1]:0").otlp_http_address) == "[::1]:0"
    assert load("--otlp-http off").otlp_http_address is None
    assert load("--otlp-http :99").otlp_http_address == Address("0.0.0.0", 99)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64MiB", 64 << 20), ("1.5 GB", 1_500_000_000), ("10kb", 10_000), ("2TiB", 2 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "MiB", "-1", "1XB", "0.1B"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_check_prints_settings_that_have_the_same_effect_and_no_secrets(tmp_path: Path) -> None:
    webhook = ("--webhook", "https://hooks.example.com/services/T0/s3cret")
    done = run_check(
        *webhook, "--alertmanager", "http://me:s3cret@am:9093", "--stop-seconds", "3", OTEL_FR_COLLECTOR_QUIET="true"
    )
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in done.stdout
    again = load(file=done.stdout, folder=tmp_path)
    assert (again.quiet, again.stop_seconds, again.grpc) == (True, 3.0, Address("127.0.0.1", 4317))
    assert again.webhook == ("https://hooks.example.com/...",)
    plain = load(file=loading.show(Settings()), folder=tmp_path)
    for field in dataclasses.fields(Settings):
        if field.name not in ("given", "otlp_http", "forward_queue_size"):
            assert getattr(plain, field.name) == getattr(Settings(), field.name), field.name


def test_check_reads_every_file_and_names_all_that_cannot_be_used(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs")
    other = Certificates(tmp_path / "other")
    tokens = tmp_path / "tokens"
    tokens.write_text("one two\n")
    done = run_check(
        *("--tls-cert", str(certificates.cert), "--tls-key", str(other.key), "--tokens", str(tokens)),
        *("--forward-ca", str(tmp_path / "nowhere.pem"), "--webhook-secret-file", str(tmp_path / "none")),
        *("--data", str(tokens / "folder")),
    )
    assert done.returncode == 2
    assert done.stdout == ""
    for part in ("server.pem", "line 1 is not TOKEN", "No such file", "none", "cannot be written"):
        assert part in done.stderr
    assert all(line.startswith("otel-fr collector: ") for line in done.stderr.splitlines())
    assert run_check(*certificates.server_options(clients=True)).returncode == 0


def test_check_starts_nothing_and_makes_nothing(tmp_path: Path) -> None:
    data, incidents = tmp_path / "data", tmp_path / "incidents.jsonl"
    assert run_check("--data", str(data), "--incidents", str(incidents)).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_configuration_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("grpc = ")
    done = run_check("--config", str(path))
    assert done.returncode == 2
    assert "is not TOML" in done.stderr
    assert "cannot be read" in run_check(OTEL_FR_COLLECTOR_CONFIG=str(tmp_path / "none.toml")).stderr


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


@pytest.mark.parametrize(
    "text",
    ["POST http://me:s3cret@host/x failed", "Authorization: Bearer s3cret", "{'authorization': 'Basic s3cret='}"],
)
def test_credentials_are_cut_out_of_what_is_logged(text: str) -> None:
    assert "s3cret" not in clean(text)


def test_the_reference_has_every_option() -> None:
    assert reference() in REFERENCE.read_text(), "put the output of settings.reference() into docs/collector.md"
