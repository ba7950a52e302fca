"""Where all ranks of a job are, asked of a real job that works, over the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from otel_fr.identity import decode_ranks
from tests.support import torchrun
from tests.support.collector_process import Collector, running
from tests.support.played_job import Job
from tests.support.tokens import READER, WRITER, bearer, write_tokens
from tests.support.waiting import PATIENCE, wait_for

pytestmark = torchrun.needed


def jobs(collector: Collector) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(collector.get("/api/v1/jobs"))["jobs"]
    return found


class Sender:
    """Sends with a token."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        return self._collector.send(method, data, metadata=bearer(WRITER), **options)


def test_ranks_that_work_say_where_they_are(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as collector:
        env = torchrun.endpoint(collector, torchrun.UNHURRIED)
        job = torchrun.start(tmp_path, "asked_stacks.py", nproc=3, env=env)
        try:
            (known,) = wait_for(lambda: [one for one in jobs(collector) if one["ranks"].get("running") == 3])
            path = f"/api/v1/jobs/{known['id']}/stacks"
            assert collector.fetch(path).status == 404, "nobody has asked"
            wait_for(lambda: json.loads(collector.post(collector.http + path, b"").body)["asked"] == 3)

            def answered() -> dict[str, Any] | None:
                found: dict[str, Any] = json.loads(collector.get(path))
                return found if not found["not_answered"] else None

            found = wait_for(answered)
            assert found is not None
        finally:
            (tmp_path / "go").touch()
            assert job.wait(PATIENCE) == 0
        places = {rank: group["frames"] for group in found["groups"] for rank in decode_ranks(group["ranks"])}
        assert sorted(places) == [0, 1, 2]
        assert all(any("asked_stacks.py" in frame for frame in frames) for frames in places.values())
        assert collector.causes() == []


def test_who_may_only_read_asks_no_rank(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "tokens")
    with running(tmp_path / "run", "--tokens", str(tokens)) as guarded:
        headers = {"Authorization": f"Bearer {READER}"}
        with Job(Sender(guarded), 2) as played:
            played.all_reported()
            (job,) = json.loads(guarded.fetch("/api/v1/jobs", **headers).body)["jobs"]
            path = f"{guarded.http}/api/v1/jobs/{job['id']}/stacks"
            refused = guarded.post(path, b"", **headers)
            assert refused.status == 403
            assert "access read,write" in json.loads(refused.body)["error"]
            assert guarded.post(path, b"", Authorization="Bearer nobody-0123456789").status == 401
