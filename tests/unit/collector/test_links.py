"""Signatures of webhooks, and links in incidents."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path
from urllib.parse import unquote

import pytest
from otel_fr_collector.cli import links_of
from otel_fr_collector.incidents.links import Links, parse_link
from otel_fr_collector.loading import SettingsError
from otel_fr_collector.web import runbooks

from tests.support.incident_data import incident_data
from tests.support.settings import load_settings


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not NAME=TEMPLATE"),
        ("ftp://x/", "is not an http"),
        ("{job}", "is not an http"),
        ("https:///x", "is not an http"),
        ("https://x /{job}", "is not an http"),
        ("https://x/{0}", "names .0.; it may name .*{job}"),
        ("https://x/{}", "names {}; it may name"),
        ("https://x/{job", "unpaired brace.*{job}"),
        ("https://x/{job}}", "unpaired brace"),
        ("https://x/{job!r}", "write {job}"),
        ("https://x/{job:>9}", "write {job}"),
    ],
)
def test_a_template_that_is_none_is_refused_with_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_link(f"trace={text}")


def test_one_name_has_one_link() -> None:
    with pytest.raises(SettingsError, match="--link: trace is given more than once"):
        load_settings("--link trace=https://a --link runbook=https://c --link trace=https://b")
    with pytest.raises(SettingsError, match="--alert-label: team is given more than once"):
        load_settings("--alert-label team=a --alert-label team=b")
    assert load_settings("--link trace=https://a --link trace=https://a").link == (("trace", "https://a"),)


def test_a_link_that_needs_what_the_incident_lacks_is_left_out() -> None:
    data = incident_data(id="ab", job="j/k", trace_id=None)
    links = Links("https://fr/{x}", "https://wiki/{job}", "https://jaeger/{trace_id}")
    assert links.of(data, 1.0, 2.0) == {"page": "https://fr/{x}/#/incidents/ab", "runbook": "https://wiki/j%2Fk"}


def test_without_options_incidents_link_to_what_the_collector_knows_of() -> None:
    def links(*options: str) -> Links:
        return links_of(load_settings(" ".join(options)))

    own = links("--http", "127.0.0.1:8080")
    assert (own.page, own.runbook) == ("http://127.0.0.1:8080", "http://127.0.0.1:8080/runbooks/{category}")
    assert links("--http", ":8080").page == f"http://{socket.gethostname()}:8080"
    assert links("--http", "127.0.0.1:0").page == links("--http", "127.0.0.1:0").runbook == ""
    assert links("--external-url", "https://fr.example/").runbook == "https://fr.example/runbooks/{category}"
    assert links("--link", "runbook=https://wiki/{category}").runbook == "https://wiki/{category}"
    assert own.dashboard == own.trace == ""
    assert links("--grafana", "http://grafana:3000/").dashboard.startswith("http://grafana:3000/d/otel-fr-incident?")
    assert links("--link", "dashboard=https://g/{job}", "--grafana", "http://g").dashboard == "https://g/{job}"


def test_no_link_shows_the_password_with_which_the_collector_itself_asks() -> None:
    found = links_of(
        load_settings("--grafana http://me:s3cret@[::1]:3000/g/ --alertmanager http://me:s3@cret@am:9093/")
    )
    assert found.dashboard.startswith("http://[::1]:3000/g/d/otel-fr-incident?")
    assert found.alertmanager == "http://am:9093"


def test_the_page_silences_what_the_runbook_silences() -> None:
    url = Links(alertmanager="http://am:9093").for_page(incident_data(job="JOB"), 0.0, 1.0)["silence"]
    given = unquote(url.partition("filter=")[2]).strip("{}").split(",")
    runbook = (Path(runbooks.__file__).with_name("missing_rank.md")).read_text().partition("amtool silence add")[2]
    command = shlex.split(runbook.partition("\n\n")[0].replace("\\\n", " "))
    assert [one.replace('"', "") for one in given] == [one for one in command if "=" in one]
