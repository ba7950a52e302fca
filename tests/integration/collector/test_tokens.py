"""Tokens: who may send, watch and read what."""

from __future__ import annotations

import base64
import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from otel_fr.control.v1 import control_pb2
from tests.support.collector_process import PROTOBUF, Collector, patched, running
from tests.support.grpc_calls import LOGS, TRACES, WATCH, refused
from tests.support.otlp_messages import spans
from tests.support.played_job import Job
from tests.support.tokens import READER, TEAM, TEAM_READER, WRITER, Player, bearer, token_options, write_tokens
from tests.support.waiting import PATIENCE, wait_for


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    path = write_tokens(tmp_path / "tokens")
    path.write_text(path.read_text() + "kept-0123456789abc read,write *\n")
    return path


@pytest.fixture
def guarded(tmp_path: Path, tokens_file: Path) -> Iterator[Collector]:
    program = patched(network__tokens__CHECK_SECONDS=0.1)  # it soon reads the file again
    with running(tmp_path / "run", "--tokens", str(tokens_file), program=program) as collector:
        collector.authorization = f"Bearer {READER}"
        yield collector


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """A collector for tests that do not change it."""
    folder = tmp_path_factory.mktemp("shared")
    with running(folder, *token_options(folder)) as collector:
        yield collector


def test_a_client_without_a_token_or_with_a_wrong_one_gets_the_reason(shared: Collector) -> None:
    for metadata in ((), bearer("writer-9876543210"), (("authorization", "Basic !!!"),), bearer("")):
        assert refused(partial(shared.send, TRACES, spans(1), metadata=metadata)) == (grpc.StatusCode.UNAUTHENTICATED)
    answer = shared.post("/v1/traces", spans(1), Authorization="Bearer nonsense")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    for authorization, message in (("", "a token is required"), ("Bearer nonsense", "the token is not known")):
        answer = shared.fetch("/api/v1/incidents", **({"Authorization": authorization} if authorization else {}))
        assert (answer.status, answer.headers["www-authenticate"].split()[0]) == (401, "Bearer")
        assert message in json.loads(answer.body)["error"]
    writer = shared.fetch("/api/v1/jobs", Authorization=f"Bearer {WRITER}")
    assert (writer.status, json.loads(writer.body)) == (403, {"error": "the token is write-only"})
    assert shared.fetch("/healthz").status == 200
    assert WRITER not in shared.err_file.read_text()


def test_a_token_for_writing_does_not_read_and_the_other_way_round(shared: Collector) -> None:
    assert shared.send(TRACES, spans(1), metadata=bearer(WRITER)) == b""
    assert shared.post("/v1/traces", spans(2), Authorization=f"Bearer {WRITER}").status == 200
    assert refused(lambda: shared.send(TRACES, spans(1), metadata=bearer(READER))) == (
        grpc.StatusCode.PERMISSION_DENIED
    )
    assert shared.post("/v1/traces", spans(2), Authorization=f"Bearer {READER}").status == 403
    basic = base64.b64encode(f"me:{READER}".encode()).decode()
    for header in (f"Bearer {READER}", f"Basic {basic}"):
        answer = shared.fetch("/api/v1/incidents", Authorization=header)
        assert json.loads(answer.body).keys() == {"incidents"}
    assert shared.fetch("/metrics", Authorization=f"Bearer {WRITER}").status == 403


def test_a_token_lets_in_only_the_jobs_it_is_for(shared: Collector) -> None:
    own, other = (Job(Player(shared, TEAM), 2, name) for name in ("team-a/train", "team-b/train"))
    with own:
        own.hang(1)
        assert shared.wait_cause()["job"] == "team-a/train"
    rank = other.ranks[0]
    call = rank.issue(other.world)
    assert refused(rank.send_report) == grpc.StatusCode.PERMISSION_DENIED
    assert refused(lambda: rank.complete(call)) == grpc.StatusCode.PERMISSION_DENIED
    assert {one["job"] for one in shared.incidents()} == {"team-a/train"}


@pytest.mark.parametrize("stored", [True, False])
def test_a_reader_of_some_jobs_learns_nothing_of_the_others(stored: bool, tmp_path: Path, tokens_file: Path) -> None:
    data = ("--data", str(tmp_path / "data")) if stored else ()
    seen: list[str] = []
    reader = f"Bearer {READER}"

    def get(path: str, token: str) -> dict[str, list[dict[str, str]]]:
        found: dict[str, list[dict[str, str]]] = json.loads(
            collector.fetch(f"/api/v1/{path}", Authorization=f"Bearer {token}").body
        )
        return found

    def listen(opened: threading.Event) -> None:
        headers = {"Authorization": f"Bearer {TEAM_READER}"}
        with urllib.request.urlopen(
            urllib.request.Request(collector.http + "/api/v1/events", headers=headers)
        ) as answer:
            for line in answer:
                seen.append(line.decode())
                opened.set()

    with running(tmp_path / "run", "--tokens", str(tokens_file), *data) as collector:
        opened = threading.Event()
        listener = threading.Thread(target=listen, args=(opened,), daemon=True)
        listener.start()
        assert opened.wait(PATIENCE)
        writer = Player(collector, WRITER)
        jobs = [Job(writer, 2, name) for name in ("team-b/train", "team-a/train")]
        with jobs[0], jobs[1]:
            for job in jobs:
                job.hang(1)
            assert wait_for(lambda: len(get("incidents", READER)["incidents"]) == 2)
            assert [one["job"] for one in get("incidents", TEAM_READER)["incidents"]] == ["team-a/train"]
            assert get("incidents?job=team-b/train", TEAM_READER) == {"incidents": []}
            # An answer is reused for a second, for all tokens with the same access.
            shown = wait_for(lambda: [one["job"] for one in get("jobs", TEAM_READER)["jobs"]])
            assert shown == ["team-a/train"]
            everything = get("incidents", READER)["incidents"]
            assert {one["job"] for one in [*everything, *get("jobs", READER)["jobs"]]} == {job.id for job in jobs}
            for one in everything:
                whole = json.loads(collector.fetch(f"/api/v1/incidents/{one['id']}", Authorization=reader).body)
                for path in (f"/api/v1/incidents/{one['id']}", whole["job_url"]):
                    status = collector.fetch(path, Authorization=f"Bearer {TEAM_READER}").status
                    assert status == (200 if one["job"] == "team-a/train" else 404)
            assert wait_for(lambda: any("team-a/train" in line for line in seen))
            assert wait_for(lambda: any('"change"' in line for line in seen))
        metrics = collector.fetch("/metrics", Authorization=f"Bearer {TEAM_READER}")
        assert (metrics.status, b"some jobs only" in metrics.body) == (403, True)
    listener.join(PATIENCE)
    assert not [line for line in seen if "team-b" in line]


@pytest.mark.parametrize("path", ["/metrics", "/metrics%0A", "/metrics?x", "//metrics", "/metrics/", "/%6Detrics"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_what_is_of_all_jobs_has_no_other_name_for_a_reader_of_some(shared: Collector, path: str, method: str) -> None:
    headers = {"Authorization": f"Bearer {TEAM_READER}"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(shared.http + path, headers=headers, method=method), timeout=10)
    assert refused.value.code in (307, 403, 404, 405)
    assert b"otel_fr_collector_" not in refused.value.read()


def test_without_a_job_the_services_name_counts(shared: Collector) -> None:
    metadata = bearer(TEAM)
    assert shared.send(TRACES, spans(1, service="team-a/web"), metadata=metadata) == b""
    for service in ("web", "team-b/web", ""):
        code = refused(partial(shared.send, TRACES, spans(1, service=service), metadata=metadata))
        assert code == grpc.StatusCode.PERMISSION_DENIED
    both = spans(1, service="team-a/web") + spans(2, service="team-b/web")  # messages in a row are one merged message
    assert refused(lambda: shared.send(TRACES, both, metadata=metadata)) == grpc.StatusCode.PERMISSION_DENIED
    assert refused(lambda: shared.send(LOGS, b"\xff\xff", metadata=metadata)) == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("job", "token", "code"),
    [
        ("team-b/train", "", grpc.StatusCode.UNAUTHENTICATED),
        ("team-b/train", READER, grpc.StatusCode.PERMISSION_DENIED),
        ("team-b/train", TEAM, grpc.StatusCode.PERMISSION_DENIED),
        ("", TEAM, grpc.StatusCode.PERMISSION_DENIED),
    ],
)
def test_commands_are_only_for_whose_job_it_is(shared: Collector, job: str, token: str, code: grpc.StatusCode) -> None:
    request = control_pb2.WatchRequest(job_id=job, run_id="r").SerializeToString()
    watch = shared.stream(WATCH)(request, metadata=bearer(token) if token else (), timeout=10)
    assert refused(lambda: list(watch)) == code


def test_streams_that_are_open_end_when_their_token_is_revoked(guarded: Collector, tokens_file: Path) -> None:
    """Also if the token is now for other jobs. Streams of unchanged tokens continue."""

    def events(token: str) -> http.client.HTTPResponse:
        client = http.client.HTTPConnection(guarded.http.removeprefix("http://"), timeout=PATIENCE)
        client.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {token}"})
        answer = client.getresponse()
        assert (answer.status, answer.readline()) == (200, b"event: jobs\r\n")
        return answer

    watch = guarded.stream(WATCH)
    request = control_pb2.WatchRequest(job_id="team-a/train", run_id="r").SerializeToString()
    revoked, changed, kept = (
        watch(request, metadata=bearer(token), timeout=PATIENCE) for token in (TEAM, WRITER, "kept-0123456789abc")
    )
    lost, narrowed, staying = events(TEAM_READER), events(READER), events("kept-0123456789abc")
    for number in range(3):  # over the same connection, after the streams were opened
        assert guarded.send(TRACES, spans(number), metadata=bearer(WRITER)) == b""
    tokens_file.write_text(f"{WRITER} write team-b/\n{READER} read team-b/\nkept-0123456789abc read,write *\n")
    for stream in (revoked, changed):
        assert refused(partial(list, stream)) == grpc.StatusCode.UNAUTHENTICATED
    for answer in (lost, narrowed):
        answer.read()  # to its end
    with Job(Player(guarded, "kept-0123456789abc"), 2, "team-a/train") as job:
        job.hang(1)
        incident = guarded.wait_cause()
        lines = iter(staying.readline, b"")
        assert next(line for line in lines if incident["id"].encode() in line)
    assert kept.is_active()
    kept.cancel()  # type: ignore[no-untyped-call]
    staying.close()


@pytest.mark.parametrize("now", ["", f"{WRITER} write team-b/\n"], ids=["revoked", "for other jobs"])
def test_a_request_whose_token_is_revoked_while_it_arrives_is_rejected(
    guarded: Collector, tokens_file: Path, now: str
) -> None:
    """It was admitted before the change, and its last bytes come after it."""
    body = spans(1)
    client = http.client.HTTPConnection(guarded.otlp_http.removeprefix("http://"), timeout=PATIENCE)
    client.putrequest("POST", "/v1/traces")
    for name, value in (("Content-Type", PROTOBUF), ("Content-Length", str(len(body)))):
        client.putheader(name, value)
    client.putheader("Authorization", f"Bearer {WRITER}")
    client.endheaders(body[:10])
    assert wait_for(lambda: guarded.metric("otel_fr_collector_requests_in_flight") == 1)
    tokens_file.write_text(now + f"{READER} read *\nkept-0123456789abc read,write *\n")
    assert wait_for(lambda: guarded.post("/v1/logs", b"", Authorization=f"Bearer {TEAM}").status == 401)
    client.send(body[10:])
    answer = client.getresponse()
    assert answer.status == 401
    client.close()
    assert guarded.metric("otel_fr_collector_items_received_total", kind="other", signal="traces") == 0


def test_a_changed_tokens_file_comes_into_force_and_a_broken_one_does_not(
    guarded: Collector, tokens_file: Path
) -> None:
    fresh = "fresh-token-0123456789"
    tokens_file.write_text(f"{fresh} write *\n")
    status = {}

    def changed() -> bool:
        for token in (fresh, WRITER):
            status[token] = guarded.post("/v1/traces", spans(1), Authorization=f"Bearer {token}").status
        return status == {fresh: 200, WRITER: 401}

    assert wait_for(changed), status
    tokens_file.write_text("only-one-word-0123456789\n")
    assert wait_for(lambda: changed() and "keeping the old ones" in guarded.err_file.read_text())
    assert "only-one-word" not in guarded.err_file.read_text()
