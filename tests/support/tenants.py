"""Two tenants of one collector, each with a token for the jobs whose names begin with its own name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.collector_process import Collector
from tests.support.played_job import Job
from tests.support.tokens import bearer

TENANTS = ("team-a", "team-b")
READER = "reads-all-0123456789"


def tokens_file(folder: Path) -> tuple[str, str]:
    """The options of a collector that knows the tenants, and `READER`, who may read everything."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokens"
    lines = [f"{_token(tenant)} write {tenant}/" for tenant in TENANTS]
    path.write_text("\n".join([*lines, f"{READER} read *"]) + "\n")
    return "--tokens", str(path)


def _token(tenant: str) -> str:
    return f"{tenant}-0123456789"


class As:
    """Sends with a tenant's token."""

    def __init__(self, collector: Collector, tenant: str) -> None:
        self._collector = collector
        self._tenant = tenant

    @staticmethod
    def metadata(tenant: str) -> tuple[tuple[str, str], ...]:
        return bearer(_token(tenant))

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        return self._collector.send(method, data, metadata=self.metadata(self._tenant), **options)

    def job(self, world: int, job_id: str) -> Job:
        """A job of this tenant."""
        return Job(self, world, job_id)
