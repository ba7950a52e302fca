"""A healthy job under plain torchrun. Its ranks record, and answer requests for their stacks and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from otel_fr.identity import decode_ranks
from otel_fr.ring import RingReader
from tests.support import torchrun
from tests.support.commands import BIN, otel_fr, run
from tests.support.waiting import PATIENCE, until

pytestmark = torchrun.needed


def test_the_ranks_of_a_job_that_works_say_where_they_are_and_write_their_files(tmp_path: Path) -> None:
    rings_folder = {"OTEL_FR_RING_DIR": str(tmp_path / "rings")}
    with torchrun.collector(tmp_path / "collector") as collector:
        env = torchrun.endpoint(collector, torchrun.UNHURRIED) | rings_folder
        # `otel-fr dump` knows a monitor by its command line.
        job = torchrun.start(tmp_path, "works.py", env=env, program=torchrun.FRESH)
        try:
            (known,) = until(
                lambda: [
                    one for one in json.loads(collector.get("/api/v1/jobs"))["jobs"] if one["ranks"].get("running") == 3
                ]
            )
            rings = [RingReader.open(path) for path in sorted(tmp_path.glob("rings/*/*.ring"))]
            assert [ring.meta["rank"] for ring in rings] == [0, 1, 2], "the launcher, which imports torch, has none"

            path = f"/api/v1/jobs/{known['id']}/stacks"
            assert collector.fetch(path).status == 404, "nobody has asked"
            until(lambda: json.loads(collector.post(collector.http + path, b"").body)["asked"] == 3)

            def answered() -> dict[str, Any] | None:
                found: dict[str, Any] = json.loads(collector.get(path))
                return found if not found["not_answered"] else None

            groups = until(answered)["groups"]
            places = {rank: group["frames"] for group in groups for rank in decode_ranks(group["ranks"])}
            assert sorted(places) == [0, 1, 2]
            assert all(any("works.py" in frame for frame in frames) for frames in places.values())

            for ring in rings:
                # With process ids: without them, the ranks of other tests' jobs would write files, too.
                done = run(BIN / "otel-fr", "dump", "--pid", ring.pid, **rings_folder)
                assert done.stdout.count("asked its monitor") == 1, done.stderr
            until(lambda: len(list((tmp_path / "dumps").glob("otel_fr_rank_*"))) == 3)
            analyzed = otel_fr("analyze", tmp_path / "dumps")
            assert (analyzed.returncode, analyzed.stdout[:14]) == (0, "No fault found")
        finally:
            (tmp_path / "go").touch()
            output, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 0, output
        # On a busy machine, one rank may really come last for a while.
        assert {one["category"] for one in collector.causes()} <= {"straggler"}
