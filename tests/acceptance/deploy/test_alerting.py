"""Prometheus rules, Alertmanager routes, runbooks: each program loads its files, and all run once as a chain."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from otel_fr_collector.outlets.alertmanager import ALERT_NAME
from otel_fr_collector.web import runbooks

from otel_fr.match.finding import Category
from tests.support.collector_process import running
from tests.support.example_incident import Play, alert_of
from tests.support.external_programs import (
    ALERTMANAGER,
    check_metrics,
    get,
    load,
    needs_alertmanager,
    needs_amtool,
    needs_prometheus,
    needs_promtool,
    our_metrics,
    recorded,
    started,
)
from tests.support.paths import DEPLOY
from tests.support.played_job import Issued, Job
from tests.support.ports import free_port
from tests.support.waiting import until, wait_for

RULES = "prometheus/otel_fr.rules.yml"


def rules() -> list[dict[str, Any]]:
    return [rule for group in load(RULES)["groups"] for rule in group["rules"]]


@needs_promtool
def test_prometheus_takes_rules_and_scrape_configuration() -> None:
    for command in (
        ["check", "rules", "otel_fr.rules.yml"],
        ["test", "rules", "otel_fr.rules.test.yml"],
        ["check", "config", "prometheus.yml"],
    ):
        done = subprocess.run(["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_unit_tests_that_see_it_fire_and_not_fire() -> None:
    cases = [case for test in load("prometheus/otel_fr.rules.test.yml")["tests"] for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case in cases if case["exp_alerts"]}
    quiet = {case["alertname"] for case in cases if not case["exp_alerts"]}
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert alerts == fires == quiet


def test_rules_name_only_metrics_that_exist(tmp_path: Path) -> None:
    text = " ".join(rule["expr"] for rule in rules())
    assert our_metrics(text)
    assert recorded(text) <= {rule["record"] for rule in rules() if "record" in rule}
    check_metrics(text, tmp_path)


def test_there_is_a_runbook_for_each_category_and_each_link() -> None:
    books = runbooks.FOLDER
    for category in Category:
        text = (books / f"{category.value}.md").read_text()
        assert text.startswith(f"# {category.value}: ")
        for part in ("## What to look at first", "## Typical causes", "## How to silence"):
            assert part in text, (category, part)
        assert f"category={category.value}" in text
    links = [rule["annotations"]["runbook_url"] for rule in rules() if "alert" in rule]
    assert {link.rsplit("/", 1)[0] for link in links} == {"http://localhost:8080/runbooks"}
    for link in links:
        page, _, section = link.rsplit("/", 1)[1].partition("#")
        if "{{" in page:  # {{ $labels.category }}.md: the runbooks above
            continue
        headings = re.findall(r"^## (.*)$", (books / page).read_text(), flags=re.MULTILINE)
        assert section in {heading.lower().replace(" ", "-") for heading in headings}, link


@needs_amtool
@pytest.mark.parametrize("name", ["alertmanager.yml", "receivers.example.yml"])
def test_alertmanager_takes_the_configuration(name: str) -> None:
    done = subprocess.run(
        ["amtool", "check-config", str(DEPLOY / "alertmanager" / name)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_collector_that_is_down_inhibits_every_other_alert_about_it() -> None:
    own = {rule["alert"] for rule in rules() if rule.get("alert", "").startswith("OtelFr")}
    (down,) = [
        rule
        for rule in load("alertmanager/alertmanager.yml")["inhibit_rules"]
        if 'alertname = "OtelFrCollectorDown"' in rule["source_matchers"]
    ]
    names = re.fullmatch(r'alertname =~ "OtelFr\((.*)\)"', down["target_matchers"][0])
    assert names is not None
    assert {f"OtelFr{name}" for name in names[1].split("|")} == own - {"OtelFrCollectorDown", "OtelFrCollectorAbsent"}


def test_the_receivers_example_differs_in_its_receivers_only() -> None:
    plain, example = load("alertmanager/alertmanager.yml"), load("alertmanager/receivers.example.yml")
    names = [[receiver["name"] for receiver in config.pop("receivers")] for config in (plain, example)]
    assert plain == example
    assert names[0] == names[1]


ROUTES = [
    ("page", {"alertname": ALERT_NAME, "severity": "critical", "category": "missing_rank", "job_id": "7"}),
    ("page", {"alertname": "TorchDistributedIncidentOpen", "severity": "critical", "job_id": "7"}),
    ("chat", {"alertname": ALERT_NAME, "severity": "warning", "category": "straggler", "job_id": "7"}),
    ("chat", {"alertname": "TorchDistributedIncidentOpen", "severity": "warning", "job_id": "7"}),
    ("operators", {"alertname": "OtelFrCollectorDown", "severity": "warning"}),
    ("default", {"alertname": "NodeFilesystemFull", "severity": "critical"}),
]


@needs_amtool
@pytest.mark.parametrize(("receiver", "labels"), ROUTES)
def test_alerts_are_routed(receiver: str, labels: dict[str, str]) -> None:
    command = ["amtool", "config", "routes", "test", f"--config.file={DEPLOY / 'alertmanager' / 'alertmanager.yml'}"]
    command += [f"--verify.receivers={receiver}", *(f"{name}={value}" for name, value in labels.items())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def rendered(folder: Path, data: dict[str, Any]) -> list[str]:
    """Return title and text of a message, rendered with Alertmanager's templates."""
    (folder / "data.json").write_text(json.dumps(data))
    command = ["amtool", "template", "render", f"--template.glob={DEPLOY / 'alertmanager' / '*.tmpl'}"]
    command += [f"--template.data={folder / 'data.json'}"]
    texts = []
    for name in ("otel_fr.title", "otel_fr.text"):
        done = subprocess.run(
            [*command, f'--template.text={{{{ template "{name}" . }}}}'], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout.strip())
    return texts


@needs_amtool
def test_the_message_says_what_the_alert_says(tmp_path: Path) -> None:
    play = Play()
    incident = play.run()
    alert = alert_of(play)
    given = {"labels": alert["labels"], "annotations": alert["annotations"]}
    common = {"commonLabels": alert["labels"], "commonAnnotations": alert["annotations"]}
    title, text = rendered(tmp_path, {"status": "firing", **common, "alerts": [{"status": "firing", **given}]})
    assert title == "[FIRING] job llama-7b: missing_rank on gpu-18"
    assert text.startswith(alert["annotations"]["summary"])
    assert "culprit ranks 2" in text
    assert "http://collector:8080/runbooks/missing_rank" in text
    assert f"http://jaeger:16686/trace/{incident.data['trace_id']}" in text
    short = {"status": "firing", "labels": {"category": "missing_rank"}, "annotations": {"trace_id": "ab12"}}
    data = {"status": "firing", "commonLabels": {"job_id": "job-7"}, "alerts": [short]}
    title, text = rendered(tmp_path, data)
    assert (title, text.split()) == ("[FIRING] job job-7: missing_rank", ["trace", "ab12"])


def configured(folder: Path, collector: str, alertmanager: str, *, is_quick: bool) -> Path:
    """Write deploy/'s Prometheus configuration with the test's addresses. ``is_quick``: with shorter times."""
    config = load("prometheus/prometheus.yml")
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager]}]}]
    job = config["scrape_configs"][0]
    pace = {"scrape_interval": "1s"} if is_quick else {}
    config["scrape_configs"] = [{**job, **pace, "static_configs": [{"targets": [collector]}]}]
    text = (DEPLOY / RULES).read_text()
    if is_quick:
        text = text.replace("interval: 5s", "interval: 1s").replace("keep_firing_for: 15s", "keep_firing_for: 2s")
        text = text.replace("for: 30s", "for: 2s")
    (folder / "otel_fr.rules.yml").write_text(text)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    return folder / "prometheus.yml"


@contextlib.contextmanager
def watched(folder: Path, *options: str, posts: bool, is_quick: bool = True) -> Iterator[tuple[Job, str, str]]:
    """Yield a job, and the addresses of Prometheus and of Alertmanager.

    Args:
        options: of the collector. posts: the collector reaches Alertmanager, too. is_quick: as in `configured`.
    """
    alerts, prometheus = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    own = started(
        folder / "alertmanager.log", str(ALERTMANAGER),
        f"--config.file={DEPLOY / 'alertmanager' / 'alertmanager.yml'}", f"--web.listen-address={alerts}",
        f"--storage.path={folder / 'alertmanager'}", "--cluster.listen-address=",
    )  # fmt: skip
    given = alerts if posts else f"127.0.0.1:{free_port()}"  # nothing listens there
    with own, running(folder, "--alertmanager", f"http://{given}", *options) as collector:
        assert wait_for(lambda: get(f"http://{alerts}/-/ready"))
        config = configured(folder, collector.http.removeprefix("http://"), alerts, is_quick=is_quick)
        scraper = started(
            folder / "prometheus.log", "prometheus", f"--config.file={config}",
            f"--web.listen-address={prometheus}", f"--storage.tsdb.path={folder / 'tsdb'}",
        )  # fmt: skip
        with scraper, Job(collector, 3) as job:
            assert wait_for(lambda: get(f"http://{prometheus}/-/ready"))
            yield job, prometheus, alerts


def alerts_of(alertmanager: str) -> list[dict[str, Any]]:
    return get(f"http://{alertmanager}/api/v2/alerts?active=true&inhibited=true") or []


def incidents(alertmanager: str) -> dict[str, dict[str, Any]]:
    return {one["labels"]["alertname"]: one for one in alerts_of(alertmanager)}


def samples(prometheus: str, query: str) -> list[dict[str, Any]]:
    answer = until(lambda: get(f"http://{prometheus}/api/v1/query?{urlencode({'query': query})}"))
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


@needs_prometheus
@needs_alertmanager
def test_a_hung_job_whose_alert_the_collector_has_posted_is_no_second_alert_of_prometheus(tmp_path: Path) -> None:
    (rule,) = [rule for rule in rules() if rule.get("alert") == "TorchDistributedIncidentOpen"]
    with watched(tmp_path, posts=True) as (job, prometheus, alertmanager):
        # The count of posts begins at 0. Prometheus sees an increase only after it has scraped the 0.
        posts = 'otel_fr_collector_deliveries_total{outlet="alertmanager 127.0.0.1",outcome="sent"}'
        assert wait_for(lambda: samples(prometheus, f"{posts} == 0"))
        job.step()
        waiting = job.skip(1)
        assert wait_for(lambda: set(incidents(alertmanager)) == {ALERT_NAME}), incidents(alertmanager)
        both = f"otel_fr_incidents_open > 0 and on (job, instance) increase({posts}[3m]) > 0"
        assert wait_for(lambda: samples(prometheus, both)), (tmp_path / "prometheus.log").read_text()
        assert samples(prometheus, rule["expr"]) == []
        job.go_on(waiting)
        assert wait_for(lambda: not incidents(alertmanager)), incidents(alertmanager)


@needs_prometheus
@needs_alertmanager
def test_a_hung_job_reaches_alertmanager_by_prometheus_while_the_collector_cannot_post(tmp_path: Path) -> None:
    """Collector -> scrape -> rule -> Alertmanager."""
    with watched(tmp_path, posts=False) as (job, _, alertmanager):
        job.step()
        waiting = job.skip(1)
        found = wait_for(lambda: incidents(alertmanager))
        assert found, (tmp_path / "prometheus.log").read_text()
        ((name, alert),) = found.items()
        assert name == "TorchDistributedIncidentOpen"
        assert alert["labels"]["job_id"] == "job-7"
        assert (alert["labels"]["category"], alert["labels"]["severity"]) == ("missing_rank", "critical")
        assert alert["annotations"]["runbook_url"].endswith("/missing_rank.md")
        assert alert["status"]["state"] == "active"
        job.go_on(waiting)
        assert wait_for(lambda: not incidents(alertmanager)), incidents(alertmanager)


@needs_prometheus
@needs_alertmanager
@pytest.mark.long
def test_with_the_shipped_values_one_alert_is_made_of_the_incident_that_lasts(tmp_path: Path) -> None:
    """Three jobs hang for 10, 25 and 90 s. People are notified after 30 s, once."""
    with (
        watched(tmp_path, "--alert-after", "30", posts=True, is_quick=False) as (first, _, alertmanager),
        Job(first.collector, 3, "25") as second,
        Job(first.collector, 3, "90") as third,
    ):
        hanging: dict[Job, tuple[float, list[Issued]]] = {}
        for job, seconds in ((first, 10), (second, 25), (third, 90)):
            job.step()
            hanging[job] = time.monotonic() + seconds, job.skip(1)
        seen: set[tuple[str, str]] = set()

        def look() -> bool:
            labels = [one["labels"] for one in alerts_of(alertmanager)]
            seen.update((one["alertname"], one.get("job_id", "")) for one in labels)
            for job in [job for job, (end, _) in hanging.items() if time.monotonic() > end]:
                job.go_on(hanging.pop(job)[1])
            return False

        wait_for(look, 150.0)  # a minute more than the longest: the rule's times are 30 and 15 s
    assert seen == {(ALERT_NAME, "90")}
