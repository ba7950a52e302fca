"""Grafana's files. Grafana is in no package index, so these tests check its rules. A real Prometheus checks PromQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.collector_process import running
from tests.support.external_programs import (
    check_metrics,
    get,
    load,
    needs_prometheus,
    our_metrics,
    recorded,
    started,
)
from tests.support.paths import DEPLOY
from tests.support.played_job import Job
from tests.support.ports import free_port
from tests.support.rank_metrics import metrics_of
from tests.support.waiting import until, wait_for

BOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
BUS_BANDWIDTH = "otel_fr_collective_bus_bandwidth_bytes_per_second"
BUILT_IN = {"__range", "__interval", "__rate_interval", "__url_time_range", "__value", "__data", "__field", "__all"}


def board(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def walk(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a document."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def sources() -> dict[str, dict[str, Any]]:
    return {one["uid"]: one for one in load("grafana/provisioning/datasources/otel_fr.yaml")["datasources"]}


def expressions() -> list[str]:
    """Return every PromQL expression of dashboards, variables, alert rules and trace-to-metrics queries."""
    found = [node["expr"] for path in BOARDS for node in walk(board(path)) if "expr" in node]
    for path in BOARDS:
        for variable in board(path)["templating"]["list"]:
            if variable["type"] == "query":
                match = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])
                assert match, variable
                found.append(match.group(1))
    found += [node["expr"] for node in walk(load("grafana/provisioning/alerting/otel_fr.yaml")) if "expr" in node]
    for source in sources().values():
        queries = source["jsonData"].get("tracesToMetrics", {}).get("queries", [])
        found += [query["query"].replace("$$__tags", 'job_id="a"') for query in queries]
    return found


def filled(expression: str) -> str:
    """Fill in the dashboard variables of an expression, as Grafana does."""
    for name, value in {"$__range": "1h", "$__rate_interval": "1m", "$job_id": "a|b", "$process_group": ".*"}.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_sound(path: Path) -> None:
    found = board(path)
    assert found["uid"] == path.stem
    assert len(found["uid"]) <= 40
    assert "id" not in found, "an id of one Grafana's database cannot be provisioned elsewhere"
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies upon another panel"
        taken |= cells
        letters = [target["refId"] for target in panel.get("targets", [])]
        assert len(letters) == len(set(letters)), panel["title"]
        assert panel["type"] in {"text", "row", "alertlist"} or letters, f"{panel['title']} asks nothing"


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_names_only_what_exists(path: Path) -> None:
    found = board(path)
    for node in walk(found):
        source = node.get("datasource")
        if isinstance(source, dict) and source["uid"] != "-- Grafana --":
            assert source["uid"] in sources(), source
            assert source["type"] == sources()[source["uid"]]["type"], source
        internal = node.get("internal")
        if internal is not None:
            assert sources()[internal["datasourceUid"]]["name"] == internal["datasourceName"]
    text = path.read_text()
    boards = {one.stem: {variable["name"] for variable in board(one)["templating"]["list"]} for one in BOARDS}
    links = re.findall(r'"url": "/d/([\w-]+)\??([^"]*)"', text)
    assert links
    for uid, rest in links:
        assert uid in boards, uid
        assert set(re.findall(r"var-(\w+)=", rest)) <= boards[uid], (uid, rest)
    used = set(re.findall(r"\$\{?([A-Za-z_]\w*)", text))
    assert used - BUILT_IN <= boards[path.stem]


def test_links_from_elsewhere_lead_to_dashboards_with_these_variables() -> None:
    boards = {one.stem: {variable["name"] for variable in board(one)["templating"]["list"]} for one in BOARDS}
    links = re.findall(r":3000/d/([\w-]+)\??([^\"]*)", (DEPLOY / "jaeger" / "ui.json").read_text())
    assert links
    for uid, rest in links:
        assert set(re.findall(r"var-(\w+)=", rest)) <= boards[uid], (uid, rest)
    for rule in load("grafana/provisioning/alerting/otel_fr.yaml")["groups"][0]["rules"]:
        if "dashboardUid" in rule:
            panels = board(DEPLOY / "grafana" / "dashboards" / f"{rule['dashboardUid']}.json")["panels"]
            (panel,) = [one for one in panels if one["id"] == rule["panelId"]]
            assert panel["title"] == "Firing incidents"


def test_queries_name_only_metrics_that_a_collector_exports(tmp_path: Path) -> None:
    text = "\n".join(expressions())
    assert len(our_metrics(text)) > 8
    groups = load("prometheus/otel_fr.rules.yml")["groups"]
    assert recorded(text) <= {rule.get("record") for group in groups for rule in group["rules"]}
    check_metrics(text, tmp_path)


@needs_prometheus
def test_a_real_prometheus_answers_every_query_of_the_dashboards(tmp_path: Path) -> None:
    """All queries parse. Queries about incidents show the scraped incident of a hung job."""
    at = f"127.0.0.1:{free_port()}"
    with running(tmp_path) as collector, Job(collector, 3, job_id="a") as job:
        job.step()
        job.skip(1)
        collector.wait_cause()
        for rank in range(2):
            assert collector.post("/v1/metrics", metrics_of(rank)).status == 200
        target = collector.http.removeprefix("http://")
        scrape = {"job_name": "otel-fr-collector", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
        (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))
        command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--web.listen-address={at}"]
        command.append(f"--storage.tsdb.path={tmp_path / 'tsdb'}")

        def ask(expression: str) -> dict[str, Any]:
            found: dict[str, Any] = until(lambda: get(f"http://{at}/api/v1/query?query={quote(filled(expression))}"))
            return found

        with started(tmp_path / "prometheus.log", *command):
            seen = wait_for(lambda: ask("otel_fr_incidents_open").get("data", {}).get("result"))
            assert seen, (tmp_path / "prometheus.log").read_text()
            for expression in expressions():
                assert ask(expression).get("status") == "success", expression
                if our_metrics(expression) & {"otel_fr_incidents_open", BUS_BANDWIDTH}:
                    assert ask(expression)["data"]["result"], expression


def test_alert_rules_have_what_grafana_requires_of_them() -> None:
    found = load("grafana/provisioning/alerting/otel_fr.yaml")
    assert found["apiVersion"] == 1
    assert "policies" not in found, "a provisioned policy replaces the site's whole tree"
    for group in found["groups"]:
        assert {"name", "folder", "interval", "rules"} <= set(group)
        for rule in group["rules"]:
            assert {"uid", "title", "condition", "data", "for", "noDataState", "execErrState"} <= set(rule)
            steps = {step["refId"]: step for step in rule["data"]}
            assert rule["condition"] in steps
            for name, step in steps.items():
                assert step["model"]["refId"] == name
                if step["datasourceUid"] == "__expr__":
                    assert step["model"]["expression"] in steps
                else:
                    assert step["datasourceUid"] in sources()


def test_data_sources_refer_to_each_other_and_to_nothing_else() -> None:
    for source in sources().values():
        for node in walk(source["jsonData"]):
            for key in ("datasourceUid", "alertmanagerUid"):
                assert node.get(key) in {None, *sources()}, source["name"]
    provider = load("grafana/provisioning/dashboards/otel_fr.yaml")["providers"][0]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards/otel-fr"
