"""Options: flags before environment before file before defaults, checked before anything starts."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path

import pytest
from otel_fr_collector import cli
from otel_fr_collector.cli import check
from otel_fr_collector.loading import SettingsError
from otel_fr_collector.network.address import Address
from otel_fr_collector.settings import ENV_PREFIX, Settings, reference

from otel_fr.redaction import clean, hide_password
from tests.support.paths import DOCS
from tests.support.settings import load_settings

PREFIX = ENV_PREFIX
REFERENCE = DOCS / "reference" / "options.md"


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = 'grpc = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\nlog_level = "debug"\nquiet = true\n'
    env = {PREFIX + "GRPC": "127.0.0.1:3", PREFIX + "HTTP": "127.0.0.1:4"}
    found = load_settings("--grpc 127.0.0.1:5 --no-quiet", env, file, tmp_path)
    assert (found.grpc.port, found.http.port, found.log_level) == (5, 4, "debug")
    assert not found.quiet
    assert found.log_format == "text"


def test_lists_may_be_given_everywhere(tmp_path: Path) -> None:
    assert load_settings("--forward grpc://a --forward grpc://b").forward == ("grpc://a", "grpc://b")
    assert load_settings(env={PREFIX + "FORWARD": "grpc://a, grpc://b"}).forward == ("grpc://a", "grpc://b")
    twice = 'forward = ["grpc://a", "grpc://b", "grpc://a"]'
    assert load_settings(file=twice, folder=tmp_path).forward == ("grpc://a", "grpc://b")
    assert load_settings(file="stop-seconds = 7", folder=tmp_path).stop_seconds == 7


def test_an_empty_url_is_not_set(tmp_path: Path) -> None:
    env = {PREFIX + "FORWARD": " ", PREFIX + "EXTERNAL_URL": "http://b"}
    file = 'grafana = ""\nwebhook = ["", "http://c"]\nforward = "grpc://a"'
    found = load_settings("--alertmanager= --external-url=", env, file, tmp_path)
    assert (found.alertmanager, found.grafana, found.webhook) == ((), None, ("http://c",))
    assert (found.external_url, found.forward) == ("http://b", ("grpc://a",))
    with pytest.raises(SettingsError):  # not an open collector
        load_settings("--tokens= --tls-cert=")


def test_every_problem_is_named_at_once_with_the_nearest_right_name(tmp_path: Path) -> None:
    env = {PREFIX + "FORWAD": "grpc://a", PREFIX + "STOP_SECONDS": "soon", PREFIX + "RUNBOOK_URL": "http://a"}
    file = 'alert-manager = "http://a"\n[tokens]\nx = 1\n'
    with pytest.raises(SettingsError) as caught:
        load_settings("--tls-cert x --straggler-seconds 0", env, file, tmp_path)
    text = str(caught.value)
    assert "did you mean OTEL_FR_COLLECTOR_FORWARD?" in text
    assert "did you mean alertmanager?" in text
    assert "OTEL_FR_COLLECTOR_STOP_SECONDS: 'soon' is not a number" in text
    assert "--straggler-seconds: '0' is not a number from 0.001 to 3600" in text
    assert "--tls-cert needs --tls-key" in text
    assert "tokens in" in text
    assert "unknown option OTEL_FR_COLLECTOR_RUNBOOK_URL" in text.splitlines()  # none is near
    assert len(text.splitlines()) == 7


def test_what_kubernetes_puts_into_the_environment_is_no_mistake() -> None:
    names = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_OTLP_GRPC", "PORT", "PORT_4317_TCP", "PORT_4317_TCP_ADDR")
    assert load_settings(env={PREFIX + name: "tcp://10.0.0.1:4317" for name in names}) == Settings()


def test_otlp_over_http_listens_beside_grpc_unless_configured_otherwise() -> None:
    assert str(load_settings().otlp_http_address) == "127.0.0.1:4318"
    assert str(load_settings("--grpc 0.0.0.0:9000").otlp_http_address) == "0.0.0.0:4318"
    assert str(load_settings("--grpc [::1]:0").otlp_http_address) == "[::1]:0"
    assert load_settings("--otlp-http off").otlp_http_address is None
    assert load_settings("--otlp-http :99").otlp_http_address == Address("0.0.0.0", 99)


@pytest.mark.parametrize(
    "text",
    [
        "POST http://me:s3cret@host/x failed",
        "Authorization: Bearer s3cret",
        "{'authorization': 'Basic s3cret='}",
        "postgresql://me:s3cret/a@b@host/x",
        "postgresql://me:a,s3cret@host/x",
        "postgresql://host/x?sslmode=require&sslpassword=s3cret",
    ],
)
def test_credentials_are_cut_out_of_what_is_logged(text: str) -> None:
    assert "s3cret" not in clean(text)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret/a@host/x",
        "postgresql://me:s3cret@a@host/x",
        "postgresql://me:s3cret%a@host/x",
        "postgresql://me:s3cret%00@host/x",
        "postgresql://me:s3cret a@host/x",
        "postgresql://me:a/?s3cret@host/x",
        "postgresql://me:s3cret/x",
        "postgresql://me@host/x?password=s3cret",
        "mysql://me:s3cret@host/x",
        "me:s3cret@host/x",
    ],
)
def test_the_url_of_a_database_that_would_be_misread_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SettingsError, match="STORE: ") as refused:
        load_settings("", {ENV_PREFIX + "STORE": url})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("option", ["alertmanager", "external-url", "forward", "grafana", "webhook"])
@pytest.mark.parametrize("url", ["me:s3cret@host:9093", "htp://me:s3cret@host", "hooks.example/services/s3cret"])
def test_a_url_without_its_scheme_is_refused_and_not_shown(option: str, url: str) -> None:
    with pytest.raises(SettingsError, match=f"--{option}: it is not .* http://") as refused:
        load_settings(f"--{option} {url}")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgres://me:%2F%40%25?#:s3cret@host:5432/x?sslmode=require&sslpassword=s3cret",
        "postgresql:///x?host=/run/postgresql&user=me@site",
        "postgresql://me:s3cret@one:1,[::1]:2,three/x?target_session_attrs=read-write",
        "postgresql://%2Frun%2Fpostgresql/x",
    ],
)
def test_every_form_of_the_url_of_a_database_is_taken_and_shown_without_its_password(url: str) -> None:
    settings = load_settings("", {ENV_PREFIX + "STORE": url})
    assert settings.store == url
    assert "s3cret" not in hide_password(url)


@pytest.mark.parametrize("url", ["htp://me:s3cret@host", "http://me:s3cret@host:99999", "http://me:s3cret/@host"])
def test_a_url_that_is_refused_is_shown_without_its_password(url: str) -> None:
    for name in ("forward", "alertmanager", "webhook", "grafana", "external-url"):
        with pytest.raises(SettingsError, match=f"--{name}: ") as refused:
            load_settings(f"--{name} {url}")
        assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"# the database\npostgresql://me:s3cret@host/x\n", "one line"),
        (b"", "one line"),
        (b"postgresql://me:s3cret\xff@host/x", "UTF-8"),
        (b"me:s3cret@host/x", "postgresql:// URL"),
    ],
)
def test_a_file_that_holds_no_url_of_a_database_is_refused_and_not_shown(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "url"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=problem) as refused:
        check(load_settings(f"--store {path}"))
    assert "s3cret" not in str(refused.value)
    path.write_bytes(b"\npostgresql://me:s3cret@host/x\n\n")
    assert load_settings(f"--store {path}").store_url() == "postgresql://me:s3cret@host/x"


def test_a_configuration_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for text in ("grpc = ", "grpc = " + 10_000 * "["):
        with pytest.raises(SettingsError, match="is not TOML"):
            load_settings(file=text, folder=tmp_path)
    for name, options, env in (
        ("--config", "--config /nowhere", {}),
        ("OTEL_FR_COLLECTOR_CONFIG", "", {"OTEL_FR_COLLECTOR_CONFIG": "/nowhere"}),
    ):
        with pytest.raises(SettingsError, match=f"^{name} /nowhere: No such file or directory$"):
            load_settings(options, env)


@pytest.mark.parametrize(
    "options",
    [
        "--config PIPE",
        "--store PIPE",
        "--tokens PIPE",
        "--webhook http://a --webhook-secret-file PIPE",
        "--grafana http://a --grafana-token-file PIPE",
        "--forward-headers PIPE",
        "--tls-cert PIPE --tls-key PIPE",
        "--forward-ca PIPE",
    ],
)
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(options: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match=r"^--[a-z-]+ \S+/pipe: must be a regular file, not a pipe or a device$"):
        check(load_settings(options.replace("PIPE", str(tmp_path / "pipe"))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--grpc nonsense", "nonsense"),
        ("--http 127.0.0.1:99999", "127.0.0.1"),
        ("--forward tempo:4317", "--forward: it is not the URL of an OTLP backend"),
        ("--alertmanager alertmanager", "alertmanager"),
        ("--webhook http://hooks:80800/x", "no valid port"),
        ("--forward https://otlp/v1/traces?key=k", "must not have a query"),
        ("--retention-days never", "not a number of at least"),
        ("--retention-size ten", "64MiB"),
        ("--link trace=http://jaeger/{trace}", "{trace_id}"),
        ("--link page=http://fr/", "NAME one of runbook, trace, dashboard"),
        ("--alert-label team-a=x", "NAME=VALUE"),
        ("--alert-label job_id=x", "otel-fr sets it"),
        ("--webhook-secret-file EMPTY", "needs --webhook"),
        ("--webhook http://x/ --webhook-secret-file EMPTY", "at least 16"),
        ("--grafana http://x/ --grafana-token-file /nowhere", "/nowhere"),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_start(options: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(SettingsError, match=re.escape(message)):
        check(load_settings(options.replace("EMPTY", str(tmp_path / "empty"))))


def test_the_reference_has_every_option() -> None:
    assert reference() in REFERENCE.read_text(), "put the output of settings.reference() into docs/reference/options.md"


@pytest.mark.parametrize(
    ("number", "message"), [(errno.EAGAIN, "is in use by another collector"), (errno.ENOSYS, "cannot be locked: ")]
)
def test_a_data_folder_that_cannot_be_locked_is_refused_with_the_reason(
    number: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(SettingsError, match=f"--data {tmp_path}.*{message}"), cli._locked_folder(tmp_path):
        pass
