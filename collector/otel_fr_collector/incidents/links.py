"""Links from an incident to the collector's page, a runbook, the trace and a dashboard."""

from __future__ import annotations

import json
import re
import string
from dataclasses import dataclass
from urllib.parse import quote

from otel_fr.incident import CollectorIncidentData
from otel_fr.printable import one_line

FIELDS = ("category", "incident_id", "job", "attempt", "run_id", "trace_id", "from_ms", "to_ms")
"""Fields that a template may name in braces."""
LINKS = ("runbook", "trace", "dashboard")
"""Links that an option may set."""
GRAFANA_DASHBOARD = "/d/otel-fr-incident?var-job_id={job}&var-trace_id={trace_id}&from={from_ms}&to={to_ms}"
"""Appended to Grafana's URL; the dashboard is deploy/grafana/dashboards/otel-fr-incident.json."""
ALERTS = 'alertname=~"TorchDistributedIncident(Open)?"'
"""The alerts of an incident: the collector's own, or Prometheus' in its place."""
MARGIN_MS = 300_000
"""Milliseconds shown before an incident's start and after its end."""


def parse_link(text: str) -> tuple[str, str]:
    """The name and the template of ``NAME=TEMPLATE``.

    Raises:
        ValueError: the text has another form, or incidents have no link of that name.
    """
    name, _, template = text.partition("=")
    if name not in LINKS or not template:
        raise ValueError(f"{text!r} is not NAME=TEMPLATE, with NAME one of {', '.join(LINKS)}")
    _check_template(template)
    return name, template


def _check_template(text: str) -> None:
    """Check a template.

    Raises:
        ValueError: it is not an http(s) URL, or names a field that incidents do not have.
    """
    if not re.fullmatch(r"https?://[^/\s]\S*", text):
        raise ValueError(f"{text!r} is not an http:// or https:// URL")
    known = ", ".join(f"{{{field}}}" for field in FIELDS)
    try:
        fields = [part[1:] for part in string.Formatter().parse(text) if part[1] is not None]
    except ValueError:
        raise ValueError(f"{text!r} has an unpaired brace; a field is written as one of {known}") from None
    for name, *form in fields:
        if name not in FIELDS:
            raise ValueError(f"{text!r} names {{{name}}}; it may name {known}")
        if any(form):
            raise ValueError(f"{text!r} has more than a name in the braces of {name}; write {{{name}}}")


@dataclass
class Links:
    """Templates of URLs (`FIELDS` in braces); "": no such link.

    Attributes:
        trace: may become known later (`otel_fr_collector.forward.jaeger`).
        page: where a browser reaches the collector's own page, without a slash at the end.
        alertmanager: where a browser reaches Alertmanager, without a slash at the end.
    """

    page: str = ""
    runbook: str = ""
    trace: str = ""
    dashboard: str = ""
    alertmanager: str = ""

    def for_page(self, data: CollectorIncidentData, started: float, ended: float) -> dict[str, str]:
        """As `of`, with ``silence`` while the incident is open: Alertmanager's form that silences its alerts."""
        links = self.of(data, started, ended)
        if self.alertmanager and data["state"] == "firing":
            labels = {"job_id": one_line(data["job"]), "category": data["category"]}
            own = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items()]
            matchers = ",".join([ALERTS, *own])
            links["silence"] = f"{self.alertmanager}/#/silences/new?filter={quote(f'{{{matchers}}}', safe='')}"
        return links

    def of(self, data: CollectorIncidentData, started: float, ended: float) -> dict[str, str]:
        """The links that an incident has, by name: ``page``, ``runbook``, ``trace``, ``dashboard``.

        Args:
            started, ended: Unix seconds; ended: now while it is open.
        """
        values = {
            "category": data["category"],
            "incident_id": data["id"],
            "job": data["job"],
            "attempt": data["attempt"],
            "run_id": data["run_id"],
            "trace_id": data["trace_id"],
            "from_ms": int(started * 1000) - MARGIN_MS,
            "to_ms": int(ended * 1000) + MARGIN_MS,
        }
        quoted = {name: quote(str(value), safe="") for name, value in values.items() if value is not None}
        page = self.page.replace("{", "{{").replace("}", "}}") + "/#/incidents/{incident_id}" if self.page else ""
        templates = {"page": page, "runbook": self.runbook, "trace": self.trace, "dashboard": self.dashboard}
        links = {}
        for name, template in templates.items():
            wanted = {field for _, field, _, _ in string.Formatter().parse(template) if field}
            if template and wanted <= quoted.keys():
                links[name] = template.format_map(quoted)
        return links
