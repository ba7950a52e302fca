"""``"undefined"``, torch's description of a group for which `new_group` was given none, is nobody's name."""

from __future__ import annotations

import asyncio
import json
import re

from otel_fr_collector.control import Control
from otel_fr_collector.gauges import JobGauges
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.jobs.runs import Runs
from prometheus_client import CollectorRegistry, generate_latest

from otel_fr.incident_trace import IncidentSpans, RankFacts
from otel_fr.match import Group
from tests.support.incident_data import incident_change
from tests.support.job_answers import job_answer
from tests.support.paths import ROOT
from tests.support.told import group_in, rank_in, run_in

GROUP = Group("g", "7", "undefined", (0, 1))


def test_a_group_without_a_description_has_its_name_in_labels_metrics_traces_and_the_api() -> None:
    change = incident_change(group=GROUP)
    assert change.incident.labels["process_group"] == "7"
    runs, registry = Runs(), CollectorRegistry()
    run = run_in(runs, job="job-7")
    group_in(run, GROUP)
    for rank, number in ((0, 5), (1, 3)):
        known = rank_in(run, rank)
        run.note_progress(known, GROUP.id, number, number)
    registry.register(JobGauges(runs, lambda: [change.data], lambda _: [], Control()))
    scraped = generate_latest(registry).decode()
    labels = 'job_id="job-7",process_group="7"'
    assert f"otel_fr_progress_lag{{{labels}}} 2.0" in scraped
    assert 'otel_fr_incidents_open{category="missing_rank",job_id="job-7",process_group="7"} 1.0' in scraped
    data = change.data.copy()
    data["trace_id"] = "ab" * 16
    spans = IncidentSpans(data, 1_000.0)
    assert spans.waiting(RankFacts(0), 1_001.0).name == "waits: all_reduce 7 [rank 0]"
    seen = asyncio.run(job_answer(run, IncidentBook(), 1.0, 1_000.0))
    assert "undefined" not in json.dumps(seen["lanes"])


def test_nothing_names_a_group_by_any_description_that_is_not_empty() -> None:
    """`otel_fr.presentation.group_name` is the one place for it."""
    pattern = re.compile(r"""description(?:["']\])? or [\w.\[\]"']*name""")
    sources = [path for base in ("otel_fr", "collector") for path in (ROOT / base).rglob("*.py")]
    assert [str(path) for path in sources if pattern.search(path.read_text())] == []
