"""The checks themselves: paths, mounts, space, node health's answers, clocks, and the event."""

from __future__ import annotations

import errno
import io
import json
import subprocess
from pathlib import Path

import pytest
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.checks import advice, runner
from otel_fr.checks.collector import DATE_SECONDS, check_clock, check_endpoint, least_offset
from otel_fr.checks.event import make_request
from otel_fr.checks.model import ARGUMENTS_VARIABLE, Status, Task
from otel_fr.checks.node_health import judge
from otel_fr.checks.storage import check_lustre, check_path, check_space, network_mounts
from otel_fr.checks.v1.node_health_pb2 import NodeHealthResponse
from otel_fr.otlp_sender import endpoint_mistake


def test_a_file_a_folder_and_anything_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(10_000))
    assert check_path(str(tmp_path / "file")) == (Status.OK, "a file, 4096 bytes read")
    assert check_path(str(tmp_path)) == (Status.OK, "a folder, 1 entries read")
    assert check_path("/dev/null") == (Status.OK, "there")
    assert check_path(str(tmp_path / "none")) == (Status.FAILED, "No such file or directory")
    assert check_path(str(tmp_path / "file" / "below")) == (Status.FAILED, "Not a directory")


@pytest.mark.parametrize(
    ("text", "status"), [("healthy\n", Status.OK), ("NOT HEALTHY\n", Status.FAILED), ("", Status.FAILED)]
)
def test_lustre_says_how_it_is(text: str, status: Status, tmp_path: Path) -> None:
    (tmp_path / "health_check").write_text(text)
    assert check_lustre(str(tmp_path / "health_check")).status is status
    assert check_lustre(str(tmp_path / "none")).status is Status.SKIPPED


def test_network_file_systems_are_found_among_the_mounts() -> None:
    lines = [
        "proc /proc proc rw 0 0",
        "server:/a /data nfs4 rw,vers=4.2 0 0",
        r"10.0.0.1@o2ib:/fs /mnt/my\040files\134x lustre rw 0 0",
        "server:/a /data nfs rw 0 0",
        "systemd-1 /net autofs rw 0 0",
        "",
    ]
    assert network_mounts(lines) == ["/data", "/mnt/my files\\x"]


def test_space_is_what_this_user_may_still_write(tmp_path: Path) -> None:
    assert check_space(str(tmp_path), 1).status is Status.OK
    found = check_space(str(tmp_path), 1 << 60)
    assert found.status is Status.FAILED
    assert found.text.endswith("1048576.0 TiB needed")
    assert check_space(str(tmp_path / "none"), 1).status is Status.FAILED


@pytest.mark.parametrize(
    ("answer", "status", "part"),
    [
        (NodeHealthResponse(success=True, output='{"fail_count": 0}'), Status.OK, "healthy"),
        (NodeHealthResponse(success=True), Status.OK, "healthy"),
        (
            NodeHealthResponse(success=True, output='{"fail_count": 1, "failed_checks": ["ib0"]}'),
            Status.FAILED,
            '1 checks failed: ["ib0"]',
        ),
        (NodeHealthResponse(success=True, output="all good"), Status.FAILED, "not JSON: all good"),
        (NodeHealthResponse(success=True, output="[1]"), Status.FAILED, "None checks failed"),
        (NodeHealthResponse(success=False, exit_code=42, error="no script"), Status.FAILED, "status 42: no script"),
    ],
)
def test_what_the_node_health_service_answers(answer: NodeHealthResponse, status: Status, part: str) -> None:
    found = judge(answer)
    assert found.status is status
    assert part in found.text


def test_an_address_that_is_none_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_endpoint("http://host:port", 1.0).status is Status.FAILED


@pytest.mark.parametrize("url", ["h:4317", "http://h:4318"])
def test_an_endpoint_that_cannot_be_right_is_told_as_ranks_tell_it(url: str) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
    assert check_endpoint(url, 1.0, env) == (Status.FAILED, endpoint_mistake("traces", env))


@pytest.mark.parametrize("url", ["http://me:secret@host:99999", "http://me:secret/1@host"])
def test_no_text_shows_the_password_of_a_url(url: str) -> None:
    endpoint = "host://me:secret@host"
    of_endpoint = check_endpoint(endpoint, 1.0, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
    asked = advice.find("job", 0.0, "", {"OTEL_FR_COLLECTOR": url})
    for outcome in (of_endpoint, asked):
        assert "://...@host" in outcome.text
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
    of_url = [
        check_endpoint(url, 1.0, given) for given in ({}, env, env | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})
    ]
    for outcome in (of_endpoint, asked, check_clock(url, 1.0, 1.0), *of_url):
        assert "secret" not in outcome.text


seconds = st.floats(-1e6, 1e6)


@given(true=seconds, begun=st.floats(0, 1e6), took=st.floats(0, 10), age=st.floats(0, DATE_SECONDS), at=st.floats(0, 1))
def test_the_offset_of_clocks_is_never_overstated(
    true: float, begun: float, took: float, age: float, at: float
) -> None:
    """``true``: the node's clock minus the server's, which answers at some moment after ``begun``."""
    date = begun + at * took - true - age
    found = least_offset(begun, date, begun + took)
    assert abs(found) <= abs(true) + 1e-6
    assert abs(found - true) <= took + DATE_SECONDS + 1e-6


def test_the_event_names_what_failed() -> None:
    request = make_request([("paths", "/data", "failed", "no answer"), ("clock", "c", "warning", "late")], "job", 7)
    (of_resource,) = request.resource_logs
    resource = {item.key: item.value.string_value for item in of_resource.resource.attributes}
    assert resource["torch.job.id"] == "job"
    assert resource["host.name"]
    failed, warning = of_resource.scope_logs[0].log_records
    assert (failed.event_name, failed.severity_text, failed.body.string_value) == (
        "otel_fr.check_failed",
        "ERROR",
        "no answer",
    )
    assert {item.key: item.value.string_value for item in failed.attributes} == {
        "otel_fr.check.kind": "paths",
        "otel_fr.check.target": "/data",
        "otel_fr.check.status": "failed",
    }
    assert warning.severity_text == "WARN"


def test_no_command_line_shows_the_password_of_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    def start(command: list[str], *, env: dict[str, str], **_: object) -> None:
        started.append((command, env))
        raise OSError(errno.EAGAIN, "no process left")

    monkeypatch.setattr(subprocess, "Popen", start)
    url = "http://me:secret@host"
    (result,) = runner.run([Task("collector", "http://...@host", 1.0, {"url": url})])
    assert result.text == "cannot start a process: no process left"
    ((command, env),) = started
    assert "secret" not in " ".join(command)
    assert json.loads(env[ARGUMENTS_VARIABLE]) == {"url": url}


@pytest.mark.parametrize("busy", [(503, b'{"error": "ask again later"}'), (502, b"<html>Bad Gateway</html>")])
def test_a_busy_collector_is_asked_again(busy: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"run_id": "b", "attempt": 0, "recommendation": "stop", "exclude_nodes": [], "reasons": [], "failure": {}}
    answers = [busy, (200, json.dumps(good).encode())]

    def request(*_: object, **__: object) -> urllib3.HTTPResponse:
        status, body = answers.pop(0)
        return urllib3.HTTPResponse(io.BytesIO(body), status=status)

    monkeypatch.setattr(urllib3.PoolManager, "request", request)
    monkeypatch.setattr(advice, "POLL_SECONDS", 0.0)
    assert advice.find("job", 60.0, "", {"OTEL_FR_COLLECTOR": "http://collector"}).status is Status.OK
