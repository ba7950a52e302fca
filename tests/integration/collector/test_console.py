"""``otel-fr top`` and ``otel-fr incidents``, with a collector and without one."""

from __future__ import annotations

import contextlib
import json
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from tests.support.collector_process import Collector, start
from tests.support.collector_view import CollectorView
from tests.support.commands import OTEL_FR, otel_fr, run
from tests.support.http_servers import Handler, http_server
from tests.support.incident_receivers import Receiver
from tests.support.json_lines import json_lines
from tests.support.long_tests import all_but
from tests.support.played_job import Job
from tests.support.ports import free_address
from tests.support.terminal import terminal
from tests.support.virtual_collector import VirtualCollector
from tests.support.waiting import PATIENCE, wait_for

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
"""Sets a terminal's title, and clears the terminal."""


@pytest.fixture
def collector() -> Iterator[VirtualCollector]:
    """A collector for tests that look at past incidents."""
    with VirtualCollector() as started, started.serving():
        yield started


def hang(collector: CollectorView, job: Job) -> str:
    job.hang(1)
    number: str = collector.wait_cause(lambda one: one["job"] == job.id)["id"]
    return number


def test_top_shows_the_jobs_and_what_is_wrong(collector: VirtualCollector) -> None:
    with collector.job(2, "good") as good, collector.job(3, "bad" + ESCAPE) as bad:
        good.step()
        hang(collector, bad)
        done = otel_fr("top", "--collector", collector.http)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "2 jobs, 1 firing incident " in lines[0]
    rows = [line.split() for line in lines if "/0 " in line and "ago" in line]
    assert [(row[1], row[2]) for row in rows] == [("incident", "3/3"), ("running", "2/2")]
    assert "rank 1 (node-0) did not join all_reduce number 2" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout


def test_a_terminal_without_the_characters_of_a_name_shows_their_codes(collector: VirtualCollector) -> None:
    with collector.job(3, "läuft") as job:
        number = hang(collector, job)
        for command in (["top", "--once"], ["incidents"], ["incidents", "show", number]):
            latin = run(
                *OTEL_FR, *command, "--collector", collector.http, PYTHONIOENCODING="ascii"
            )  # read at the start
            assert (latin.returncode, latin.stderr) == (0, "")
            assert "l\\xe4uft" in latin.stdout


def test_a_port_without_http_is_no_collector(process: Collector) -> None:
    done = otel_fr("incidents", "--collector", f"http://{process.grpc}")
    assert done.returncode == 3
    assert done.stderr.endswith("is not an otel-fr collector; is this its HTTP address?\n")
    assert done.stderr.isascii()


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_is_nested_without_end_is_no_collectors(status: int) -> None:
    class Nested(Handler):
        def do_GET(self) -> None:
            self.reply(status, 10_000 * b"[")

    with http_server(Nested) as server:
        done = otel_fr("incidents", "--collector", f"http://127.0.0.1:{server.server_port}")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1


def test_a_password_in_the_collectors_url_is_not_shown(collector: VirtualCollector) -> None:
    class Refusing(Handler):
        def do_GET(self) -> None:
            self.reply(403)

    top = otel_fr("top", "--collector", collector.http.replace("//", "//me:secret@"))
    assert top.stdout.startswith("http://...@127.0.0.1:")
    with http_server(Refusing) as server:
        done = otel_fr("incidents", "--collector", f"http://me:secret@127.0.0.1:{server.server_port}")
    for refused in (done, otel_fr("incidents", "--collector", "http://me:secret@127.0.0.1:99999")):
        assert "http://...@127.0.0.1" in refused.stderr
        assert "secret" not in refused.stderr


def test_top_refreshes_at_a_terminal_and_ends_by_ctrl_c(process: Collector) -> None:
    with terminal([*OTEL_FR, "top", "--collector", process.http, "--interval", "0.2"]) as top:
        assert top.shows("no job reports now")
        with Job(process, 2, "late-comer") as job:
            job.step()
            assert top.shows("late-comer/0")
        process.kill()
        assert top.shows("trying again")
        top.process.send_signal(signal.SIGINT)
        assert top.ended() == 130
        assert b"\x1b[?1049l" in top.output  # the terminal's own screen is back


def test_keys_lead_from_the_jobs_to_one_job_and_its_incident_and_back(collector: VirtualCollector) -> None:
    with collector.job(3, "good") as good, collector.job(3, "bad") as bad:
        good.step()
        number = hang(collector, bad)
        command = [*OTEL_FR, "top", "--collector", collector.http, "--interval", "0.2"]
        with terminal(command, columns=80, lines=30) as top:
            before = top.before
            assert top.shows("2 jobs, 1 firing incident")
            assert top.shows("did not join all_reduce number 2")
            top.press("?")
            assert top.shows("Backspace go back")
            top.press(" ")
            seen = len(top.output)
            top.press("\r")
            assert top.shows("bad/0 incident", seen)
            assert top.shows("ranks 0, 2 in all_reduce number 2 of default_pg: ", seen)
            assert top.shows("advice restart", seen)
            seen = len(top.output)
            top.press("\x1b[B\r")
            assert top.shows(f"incident {number}", seen)
            assert top.shows("culprits rank 1 (node-0", seen)
            top.press("u\x1b[D")
            seen = len(top.output)
            assert top.shows("2 jobs, 1 firing incident", seen)
            top.press("j\r")
            assert top.shows("good/0 running", seen)
            assert top.shows("no incident", seen)
            # The last line of a screen has no line end: the next screen begins after it.
            assert max(len(line) for line in top.text().splitlines() if "q quit" not in line) <= 80
            assert top.mode() != before
            top.press("q")
            assert top.ended() == 0
            assert top.mode() == before


def test_of_more_jobs_than_fit_those_around_the_chosen_one_are_shown(collector: VirtualCollector) -> None:
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(collector.job(1, f"job-{number:02}")) for number in range(20)]
        for job in jobs:
            job.step()
        job.all_reported()
        with terminal([*OTEL_FR, "top", "--collector", collector.http], columns=80, lines=12) as top:
            assert top.shows("20 jobs, 0 firing incidents")
            # The newest first. On a busy machine the collector may not hear of the jobs in the order of their creation.
            order = [f"{job['job']}/{job['attempt']}" for job in collector.api("jobs")["jobs"]]
            assert top.shows(order[0])
            top.press("G")
            assert top.shows(order[-1])
            seen = len(top.output)
            assert top.shows("20 jobs, 0 firing incidents", seen)
            assert order[0] not in top.text(seen)
            seen = len(top.output)
            top.press("\r")
            assert top.shows(f"{order[-1]} running", seen)
            top.process.send_signal(signal.SIGINT)
            assert top.ended() == 130
            assert top.mode() == top.before


def test_incidents_are_listed_and_chosen(collector: VirtualCollector) -> None:
    with collector.job(2, "one") as one, collector.job(2, "two " + ESCAPE) as two:
        first, second = hang(collector, one), hang(collector, two)
        at = ("--collector", collector.http)
        listed = otel_fr("incidents", *at)
        assert listed.returncode == 0
        assert first in listed.stdout
        assert second in listed.stdout
        assert "\x1b" not in listed.stdout
        assert all(line == line.rstrip() for line in listed.stdout.splitlines())
        chosen = otel_fr("incidents", "--job", "one", "--state", "firing", "--json", OTEL_FR_COLLECTOR=collector.http)
        assert [json.loads(line)["id"] for line in chosen.stdout.splitlines()] == [first]
        assert json.loads(chosen.stdout)["call_sites"]["0"] == "/job/train.py:42 step"
        none = otel_fr("incidents", "--state", "resolved", *at)
        assert (none.returncode, none.stdout) == (1, "")
        assert "no incident matches" in none.stderr


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.long)])
def test_at_a_terminal_incidents_fit_its_width_and_one_is_shown_in_full(
    columns: int, collector: VirtualCollector
) -> None:
    with collector.job(4, "one") as job:
        number = hang(collector, job)
        at = ("--collector", collector.http)
        with terminal([*OTEL_FR, "incidents", *at], columns=columns) as listed:
            assert listed.ended() == 0
            lines = listed.text().splitlines()
        assert lines[0].startswith("firing one/0 missing_rank ")
        assert number in lines[0]
        assert max(map(len, lines)) <= columns
        assert max(map(len, lines)) > columns - 20
        with terminal([*OTEL_FR, "incidents", *at, "show", number[:12].upper()], columns=columns) as shown:
            assert shown.ended() == 0
            text = shown.text()
        assert max(map(len, text.splitlines())) <= columns
        for part in (
            "firing missing_rank in job one/0",
            "culprits       rank 1 (node-0",
            number,
        ):
            assert part in text
        as_json = otel_fr("incidents", "show", number, "--json", *at)
        assert json.loads(as_json.stdout)["id"] == number
        absent = otel_fr("incidents", "show", "zz", *at)
        assert (absent.returncode, absent.stdout) == (1, "")
        assert absent.stderr == "otel-fr incidents: no incident has an id that begins with 'zz'\n"
        empty = otel_fr("incidents", "show", "", *at)
        assert (empty.returncode, empty.stdout) == (1, "")
        assert "empty" in empty.stderr
        gone = otel_fr("incidents", "show", "0" * 16, *at)
        assert gone.returncode == 3
        assert "no such incident" in gone.stderr


def test_incidents_are_followed_over_a_restart_and_each_change_is_printed_once(tmp_path: Path) -> None:
    address = free_address()
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(start(tmp_path, 1, "--http", address))
        job = stack.enter_context(Job(collector, 2))
        waiting = job.hang(1)
        number = collector.wait_cause()["id"]
        command = [*OTEL_FR, "incidents", "--follow", "--json", "--collector", collector.http]
        with (tmp_path / "followed").open("wb") as out, (tmp_path / "said").open("wb") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err)
        stack.callback(process.kill)

        def followed() -> list[tuple[str, str]]:
            """Return the changes except updates: on a busy machine a late report may change the incident."""
            found = [(line["change"], line["incident"]["id"]) for line in json_lines(tmp_path / "followed")]
            return [one for one in found if one[0] != "updated"]

        assert wait_for(lambda: followed() == [("opened", number)])
        collector.kill()
        assert wait_for(lambda: "Trying again" in (tmp_path / "said").read_text())
        second = stack.enter_context(start(tmp_path, 2, "--http", address))
        job.collector = second
        job.go_on(waiting)
        assert wait_for(lambda: followed() == [("opened", number), ("resolved", number)])
        revisions = [line["incident"]["revision"] for line in json_lines(tmp_path / "followed")]
        assert revisions == sorted(set(revisions))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


def test_followed_incidents_are_lines_for_people_too(process: Collector, tmp_path: Path) -> None:
    command = [*OTEL_FR, "incidents", "--follow", "--collector", process.http]
    with (tmp_path / "followed").open("wb") as out, Job(process, 2, "job " + ESCAPE) as job:
        follower = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            number = hang(process, job)
            assert wait_for(lambda: number in (tmp_path / "followed").read_text())
        finally:
            follower.kill()
            follower.wait()
    text = (tmp_path / "followed").read_text()
    assert text.startswith("opened   missing_rank job ")
    assert "rank 1 (node-0) did not join" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("command", all_but(("incidents",), ("top", "incidents")))
def test_a_collector_that_is_absent_or_refuses_is_reported_in_one_line(command: str, tmp_path: Path) -> None:
    absent = otel_fr(command, "--collector", "http://127.0.0.1:1")
    assert absent.returncode == 3
    assert "cannot reach a collector at http://127.0.0.1:1: Connection refused. Is it running" in absent.stderr
    assert "--http" in absent.stderr
    other = Receiver()
    with contextlib.closing(other):
        other.status = 401
        refused = otel_fr(command, "--collector", other.url)
        assert refused.returncode == 3
        assert "--token-file" in refused.stderr
        token = tmp_path / "token"
        token.write_text("from-file\n")
        otel_fr(command, "--collector", other.url, "--token-file", str(token), OTEL_FR_TOKEN="from-env")
        otel_fr(command, "--collector", other.url, OTEL_FR_TOKEN="from-env")
        tokens = [headers.get("Authorization") for _, _, headers, _ in other.requests]
        assert tokens == [None, "Bearer from-file", "Bearer from-env"]
        other.status = 200
        assert otel_fr(command, "--collector", other.url + "/grafana").returncode == 3
    for bad in (("--collector", "ftp://x"), ("--ca-file", "/nowhere"), ("--token-file", "/nowhere")):
        done = otel_fr(command, *bad)
        assert done.returncode == 3
        assert len(done.stderr.splitlines()) == 1
        assert "[Errno" not in done.stderr
    for done in (absent, refused):
        assert len(done.stderr.splitlines()) == 1
    assert otel_fr("incidents", "--follow", "--collector", "http://127.0.0.1:1").returncode == 3


def test_a_certificate_is_trusted_only_where_it_is_configured(tmp_path: Path) -> None:
    certificates, server = Certificates(tmp_path), Receiver()
    with contextlib.closing(server):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates.cert, certificates.key)
        server.server.socket = context.wrap_socket(server.server.socket, server_side=True)
        at = ("incidents", "--collector", server.url.replace("http:", "https:"))
        refused = otel_fr(*at)
        assert refused.returncode == 3
        assert "certificate" in refused.stderr.lower()
        assert server.requests == []
        assert "is not an otel-fr collector" in otel_fr(*at, "--ca-file", str(certificates.ca_file)).stderr
        assert len(server.requests) == 1
