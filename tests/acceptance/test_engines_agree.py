"""A real torchrun job of FSDP2 with calls in a second thread: both capture engines record the same."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from otel_fr.ring import RingReader
from tests.support import engines, torchrun
from tests.support.both_engines import fields_of

pytestmark = [*torchrun.needed, engines.needs_ring_writer]

RANKS, STEPS, ROUNDS = 4, 20, 30
"""As in jobs/fsdp2.py."""


def recorded(folder: Path, engine: str) -> list[dict[str, list[dict[str, Any]]]]:
    """Return each rank's records in each process group, in the order of its calls."""
    rings = folder / "rings"
    rings.mkdir(parents=True)
    env = {**engines.settings(engine), "OTEL_FR_ENABLED": "1"}
    job = torchrun.run(folder, "fsdp2.py", str(rings), nproc=RANKS, env=env)
    assert job.returncode == 0, job.output
    found = []
    for rank in range(RANKS):
        calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
        with contextlib.closing(RingReader.open(rings / str(rank))) as ring:
            assert ring.meta["capture_engine"] == engine
            assert ring.counters["hook_errors"] == ring.counters["dropped"] == 0
            for record in ring.records():
                fields = fields_of(record)
                for name in ("record_id", "thread_ident"):  # values of the process, not of the group
                    del fields[name]
                calls[record.group.description].append(fields)
        found.append(dict(calls))
    return found


@pytest.mark.long
def test_fsdp2_with_two_threads_that_issue_calls(tmp_path: Path) -> None:
    python, compiled = (recorded(tmp_path / engine, engine) for engine in engines.ENGINES)
    assert compiled == python
    for rank in compiled:
        assert len(rank["second thread"]) == 7 * ROUNDS
        assert {call["thread"] for call in rank["second thread"]} == {"second"}
        assert all("fsdp2.py:" in call["site"].text for calls in rank.values() for call in calls)
        operations = Counter(call["signature"].operation for call in rank["default_pg"])
        assert min(operations["all_gather_into_tensor"], operations["reduce_scatter_tensor"]) >= 3 * STEPS
