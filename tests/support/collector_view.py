"""A collector as tests see it, whether it is a process or runs in the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.played_job import Job
from tests.support.times import Time
from tests.support.verdicts import cause_incidents


@dataclass
class Answer:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes


class CollectorView:
    """Incidents, metrics and pages of a collector.

    Attributes:
        time: the collector's time.
    """

    time: Time

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        """Send a request to the gRPC port, and return the response."""
        raise NotImplementedError

    def fetch(self, path: str, **headers: str) -> Answer:
        """GET a path of the HTTP port."""
        raise NotImplementedError

    def lines(self) -> list[dict[str, Any]]:
        """Return each published change of an incident."""
        raise NotImplementedError

    def said(self) -> str:
        """Return text that helps to see why a test fails."""
        raise NotImplementedError

    def job(self, world: int, job_id: str = "job-7", attempt: int = 0) -> Job:
        """Return a job that reports to this collector."""
        return Job(self, world, job_id, attempt, time=self.time)

    def get(self, path: str) -> str:
        answer = self.fetch(path)
        assert answer.status == 200, answer
        return answer.body.decode()

    def api(self, path: str) -> dict[str, Any]:
        """Return the JSON at a path of the API, such as ``jobs``."""
        found: dict[str, Any] = json.loads(self.get(f"/api/v1/{path}"))
        return found

    def incidents(self) -> list[dict[str, Any]]:
        """Return the last state of each incident, in order of opening."""
        return list({line["id"]: line for line in self.lines()}.values())

    def causes(self) -> list[dict[str, Any]]:
        return cause_incidents(self.incidents())

    def wait_cause(self, check: Callable[[dict[str, Any]], object] = bool) -> dict[str, Any]:
        """Wait for the first cause for which ``check`` holds, and return it."""
        found = self.time.wait_for(lambda: next((one for one in self.causes() if check(one)), None))
        assert found is not None, (self.incidents(), self.said())
        return found

    def wait_causes(self, count: int) -> list[dict[str, Any]]:
        """Wait until there are ``count`` causes, and return all causes."""
        assert self.time.wait_for(lambda: len(self.causes()) >= count), (self.incidents(), self.said())
        return self.causes()

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of one sample of /metrics; 0 if there is none."""
        return next((value for own, value in self.samples(name) if labels.items() <= own.items()), 0.0)

    def deliveries(self, outlet: str, outcome: str = "sent") -> float:
        """Return the number of an outlet's messages with this outcome. A store has noted those with outcome "sent"."""
        return self.metric("otel_fr_collector_deliveries_total", outlet=outlet, outcome=outcome)

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each sample of this name in /metrics."""
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(self.get("/metrics"))
        return [(one.labels, one.value) for family in families for one in family.samples if one.name == name]
