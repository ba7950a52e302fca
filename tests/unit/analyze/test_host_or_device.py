"""Real NCCL files of a 16-rank Megatron job with faults injected on two ranks: on their devices, and on their hosts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import load
from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.match import Category
from otel_fr.ring import KIND_P2P, RecordState
from tests.support.paths import DUMPS
from tests.support.rings import RankRing, signature
from tests.support.torch_files import SECOND, entry, write
from tests.support.verdicts import causes


def test_two_devices_that_stopped_completing_are_named() -> None:
    found = causes(load(DUMPS / "nvrx_gpu_error_1st").findings)
    assert sorted(f.culprit_ranks for f in found) == [(12,), (14,)]
    assert {(f.category, f.stuck_on) for f in found} == {(Category.RANK_STUCK, "device")}
    assert {f.sequence_id for f in found} == {42806}


def test_two_hosts_that_hold_their_lock_are_named() -> None:
    """They have no entries at all, so their own counts must show it."""
    found = causes(load(DUMPS / "nvrx_lock_gil_2nd").findings)
    assert sorted(f.culprit_ranks for f in found) == [(10,), (15,)]
    assert {(f.category, f.stuck_on) for f in found} == {(Category.MISSING_RANK, "host")}


def timed(*, began: bool) -> list[dict[str, Any]]:
    """As NCCL's recorder with timing writes them: a call that has completed, and one that its device may have begun."""
    more = {"state": "started"} if began else {"state": "scheduled", "time_discovered_started_ns": None}
    return [entry(0, "all_reduce", 1), entry(1, "all_reduce", 2, **more)]


@pytest.mark.parametrize("only_open", [False, True])
def test_in_files_with_times_the_device_that_has_not_begun_what_the_others_are_in_is_named(
    tmp_path: Path, only_open: bool
) -> None:
    files = {rank: timed(began=rank != 1)[only_open:] for rank in range(3)}
    (cause,) = causes(load(write(tmp_path, files)).findings)
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.RANK_STUCK, (1,), "device")
    assert cause.waiting_ranks == (0, 2)


def test_in_files_with_times_a_collective_that_no_device_has_begun_is_no_fault(tmp_path: Path) -> None:
    assert load(write(tmp_path, {rank: timed(began=False) for rank in range(3)})).findings == []


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_rank_whose_thread_is_in_a_call_of_a_device_waits_there(tmp_path: Path, is_queued: bool) -> None:
    """A barrier on NCCL, or the first call of a group: the thread waits for the others before a device begins it."""
    step = signature("all_reduce", backend="nccl", reduce_op="sum")
    for rank in range(2):
        ring = RankRing(tmp_path / "rings", rank, 2)
        ring.group("1", (0, 1), "tp")
        ring.call(step, state=RecordState.UNKNOWN, age_s=30, took_s=0)
        began = time.monotonic_ns()
        devices = {0: DeviceTimes(RecordState.COMPLETED, began - 30 * SECOND, began - 29 * SECOND)}
        if rank == 0:
            ring.call(step, state=RecordState.UNKNOWN, age_s=8, took_s=0)
            devices[1] = DeviceTimes(RecordState.IN_FLIGHT, began - 8 * SECOND)
        elif is_queued:
            ring.call(step, group="1", state=RecordState.UNKNOWN, age_s=8, took_s=0)
            devices[1] = DeviceTimes(RecordState.IN_FLIGHT, is_queued=True)
        else:
            ring.call(step, group="1", state=RecordState.IN_FLIGHT, age_s=8)
        ring.write(tmp_path / "files", devices=devices)
    (cause,) = causes(load(tmp_path / "files").findings)
    expected = (Category.MISSING_RANK, (1,)) if is_queued else (Category.DEADLOCK, (0, 1))
    assert (cause.category, cause.culprit_ranks) == expected


def test_a_call_behind_another_one_on_its_device_waits_for_that_also_where_no_file_shows_a_begin(
    tmp_path: Path,
) -> None:
    """Without timing: rank 2 sends to rank 1, which is in the collective that is behind the message."""
    step, message = signature("barrier", backend="nccl"), signature("send", backend="nccl", peer=1)
    for rank in range(3):
        ring = RankRing(tmp_path / "rings", rank, 3)
        devices = {}
        if rank == 2:
            ring.call(message, kind=KIND_P2P, state=RecordState.UNKNOWN, age_s=40, took_s=0)
            devices[0] = DeviceTimes(RecordState.IN_FLIGHT)
        ring.call(step, state=RecordState.UNKNOWN, age_s=40, took_s=0)
        devices[len(devices)] = DeviceTimes(RecordState.IN_FLIGHT, is_queued=rank == 2)
        ring.write(tmp_path / "files", devices=devices)
    (cause,) = causes(load(tmp_path / "files").findings)
    assert (cause.category, cause.culprit_ranks, cause.operation) == (Category.UNMATCHED_P2P, (1,), "send")
