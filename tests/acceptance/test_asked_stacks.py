"""Where all ranks of a job are, asked of a real job that works, over the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from otel_fr.identity import decode_ranks
from tests.support import torchrun
from tests.support.collector_process import Collector
from tests.support.waiting import PATIENCE, wait_for

pytestmark = torchrun.needed


def jobs(collector: Collector) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(collector.get("/api/v1/jobs"))["jobs"]
    return found


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
