"""Groups that are bound to a device: NCCL executes their messages and collectives in one order."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from otel_fr.ring import KIND_P2P
from tests.support.worker_server import entry
from tests.unit.monitor.test_device_calls import Rank


@pytest.mark.parametrize("is_serial", [False, True])
def test_a_collective_waits_behind_a_message_of_its_group(tmp_path: Path, is_serial: bool) -> None:
    with closing(Rank(tmp_path)) as rank:
        group = rank.add_group(1, "1", "pp", "nccl", is_serial=is_serial)
        rank.issue(seconds_ago=20, kind=KIND_P2P, operation="send", group=group, number=1)
        rank.issue(seconds_ago=20, group=group, number=1)
        rank.poll()
        names = {"process_group": ["1", "pp"], "pg_id": 1}
        rank.show(entry(1, profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=1, **names), entry(1, **names))
        assert [call["is_queued"] for call in rank.in_flight()] == [False, is_serial]
