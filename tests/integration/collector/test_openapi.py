"""/api/openapi.json describes every request of the API, and a collector's answers fit it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import jsonschema
import pytest
from otel_fr_collector.incidents.incident import FIRING, RESOLVED
from otel_fr_collector.incidents.resolution import Resolution
from otel_fr_collector.otlp.signals import METHODS, METRICS
from otel_fr_collector.web import api
from otel_fr_collector.web.app import OPEN_PATHS, make_app
from otel_fr_collector.web.endpoints import Endpoint
from otel_fr_collector.web.openapi import document
from starlette.routing import Route

from otel_fr.match import Category
from tests.support.paths import DOCS
from tests.support.rank_metrics import metrics_of
from tests.support.staged_collector import Stage
from tests.support.virtual_collector import VirtualCollector
from tests.support.waiting import PATIENCE

DOCUMENT = document(api.ENDPOINTS)
PARTIAL = {"IncidentHead", "BriefIncidentDetail"}
"""Types with only some keys of an answer."""


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, one) for path, methods in DOCUMENT["paths"].items() for method, one in methods.items()]


def check(path: str, answer: Any, method: str = "get", status: str = "200") -> None:
    """Check that the answer has exactly the keys of its schema."""
    closed = json.loads(json.dumps(DOCUMENT["components"]))
    for name in closed["schemas"].keys() - PARTIAL:
        closed["schemas"][name]["additionalProperties"] = False
    response = DOCUMENT["paths"][path][method]["responses"][status]
    if "$ref" in response:
        response = closed["responses"][response["$ref"].rpartition("/")[2]]
    schema = {**response["content"]["application/json"]["schema"], "components": closed}
    jsonschema.Draft202012Validator(schema).validate(answer)


def references(part: Any) -> list[str]:
    if isinstance(part, list):
        return [one for item in part for one in references(item)]
    if isinstance(part, dict):
        return [part["$ref"]] if "$ref" in part else references(list(part.values()))
    return []


def test_the_description_is_openapi() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["info"].keys() >= {"title", "version"}
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for reference in references(DOCUMENT):
        part: Any = DOCUMENT
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]
    names = [one["operationId"] for _, _, one in operations()]
    assert len(set(names)) == len(names)
    for path, _, one in operations():
        assert {"summary", "responses"} <= one.keys()
        places = {(given["name"], given["in"]) for given in one["parameters"]}
        assert len(places) == len(one["parameters"])
        assert {name for name, place in places if place == "path"} == set(re.findall(r"{(\w+)}", path))
        assert all(given["required"] for given in one["parameters"] if given["in"] == "path")
        assert [set(one) for one in one["security"]] == [set(DOCUMENT["components"]["securitySchemes"])]


def test_every_key_of_an_answer_is_described() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert [
        f"{name}.{key}"
        for name, schema in schemas.items()
        for key, one in schema["properties"].items()
        if not one.get("description")
    ] == []
    listed, counted = schemas["JobDetail"]["properties"]["groups"], schemas["Job"]["properties"]["groups"]
    assert listed["description"] != counted["description"]  # each type describes its own keys
    assert not [name for name, schema in schemas.items() if "Attributes:" in schema.get("description", "")]


def test_the_words_for_an_incident_are_listed() -> None:
    for name in ("IncidentDetail", "IncidentHead"):
        shown = DOCUMENT["components"]["schemas"][name]["properties"]
        assert set(shown["category"]["enum"]) == {one.value for one in Category}
        assert set(shown["state"]["enum"]) == {FIRING, RESOLVED}
        assert {"enum": ["critical", "warning"]} in shown["severity"]["anyOf"]
    resolution = DOCUMENT["components"]["schemas"]["IncidentDetail"]["properties"]["resolution"]
    assert set(resolution["anyOf"][0]["enum"]) == {one.value for one in Resolution}


def test_every_request_of_the_api_is_in_it() -> None:
    with Stage() as stage:
        routes = [one for one in make_app(stage.service).routes if isinstance(one, Route)]
    served = {
        (one.path, method.lower())
        for one in routes
        if one.path.startswith("/api/")
        for method in (one.methods or set()) - {"HEAD"}
    }
    assert served == {(path, method) for path, method, _ in operations()}
    assert not [path for path, _ in served if OPEN_PATHS.fullmatch(path)]


def test_the_document_has_the_same_requests_and_parameters() -> None:
    rows = re.findall(r"^\| `(\w+) (\S+)` \|([^|]*)\|", (DOCS / "reference" / "http-api.md").read_text(), re.MULTILINE)
    written = {(method.lower(), path, frozenset(re.findall(r"`(\w+)[=`]", given))) for method, path, given in rows}
    assert len(rows) == len(written)
    assert written == {
        (method, re.sub(r"{\w+}", "ID", path), frozenset(p["name"] for p in one["parameters"] if p["in"] == "query"))
        for path, method, one in operations()
    }


def test_the_answers_about_a_job_are_what_it_says(tmp_path: Path) -> None:
    with VirtualCollector(data=tmp_path) as collector:

        def ask(path: str, name: str | None = None, status: int = 200) -> Any:
            answer = collector.fetch("/api/v1/" + path)
            assert answer.status == status, answer
            found = json.loads(answer.body)
            check("/api/v1/" + (name or path.partition("?")[0]), found, status="200" if status == 200 else "default")
            return found

        with collector.job(4) as job, collector.job(2, "b") as other:
            trio, pair = job.group("1", [0, 1, 2], "trio"), job.group("2", [0, 3], "pair")
            for _ in range(30):
                other.step()
                collector.time.advance(1.0)
            collector.send(METHODS[METRICS], metrics_of(0, job=other.id, run=other.run))
            limit = {"kind": "section", "name": "load", "age_s": 3.0, "limit_s": 2.0, "overdue": True}
            other.ranks[1].extra |= {"activity": [limit], "step": 7}
            job.skip(2, trio)
            job.ranks[3].issue(pair)
            assert collector.time.wait_for(lambda: len(collector.incidents()) >= 3)
            listed = {one["job"]: one["id"] for one in ask("jobs")["jobs"]}
            assert any(ask(f"jobs/{listed[job.id]}", "jobs/{id}")["ranks"]["waits"])
            assert any(ask(f"jobs/{listed['b']}", "jobs/{id}")["ranks"]["overdue"])
            assert ask(f"jobs/{listed['b']}/rates", "jobs/{id}/rates")["operations"]
            for query in ("", "?view=brief", "?include=consequences", "?limit=1&state=firing"):
                assert ask("incidents" + query)["incidents"]
            for one in collector.incidents():
                for query in ("", "?view=brief"):
                    ask(f"incidents/{one['id']}{query}", "incidents/{id}")
            ask(f"attribution?job={job.id}", "attribution")
            for bad in ("incidents?state=open", "jobs?limit=0", "attribution"):
                ask(bad, status=400)
            ask("jobs/none", "jobs/{id}", status=404)


def test_the_answers_about_stacks_and_a_finished_job_are_what_it_says() -> None:
    with Stage() as stage:
        run = stage.job(16)
        stage.hang(run, 3, with_consequence=True)
        stage.watch(run)
        path = f"/api/v1/jobs/{stage.key(run)}"

        def ask(path: str, body: bytes | None = None) -> Any:
            with urlopen(Request(stage.url + path, body), timeout=PATIENCE) as answer:
                return json.load(answer)

        asked = ask(f"{path}/stacks", b"")
        assert asked["asked"] == 1
        check("/api/v1/jobs/{id}/stacks", asked, "post")
        stage.answer_stacks(run, {0: "step", 1: "step", 2: "load"})
        check("/api/v1/jobs/{id}/stacks", ask(f"{path}/stacks"))
        check("/api/v1/jobs/{id}", ask(path))
        stage.recover(run)
        stage.end(run)
        stage.do(stage.finished.all_kept())
        finished = ask("/api/v1/jobs?state=finished")
        assert [one["is_finished"] for one in finished["jobs"]] == [True]
        check("/api/v1/jobs", finished)
        check("/api/v1/jobs/{id}", ask(path))


def test_it_is_served_as_it_is_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
        made.append(1)
        return document(endpoints)

    monkeypatch.setattr(api, "document", make)
    with VirtualCollector() as collector:
        answers = [collector.fetch("/api/openapi.json", Accept_Encoding=coding) for coding in ("", "gzip", "gzip")]
    assert json.loads(answers[0].body) == DOCUMENT
    assert len(answers[1].body) < 10_000
    assert made == [1]
