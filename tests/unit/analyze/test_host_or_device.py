"""Real NCCL files of a 16-rank Megatron job with faults injected on two ranks: on their devices, and on their hosts."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import load
from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.match import Category
from otel_fr.ring import RecordState
from tests.support.paths import DUMPS
from tests.support.rings import RankRing, signature
from tests.support.verdicts import causes

SECOND = 1_000_000_000


def test_two_devices_that_stopped_completing_are_named() -> None:
    found = causes(load(DUMPS / "nvrx_gpu_error_1st").findings)
    assert sorted(f.culprit_ranks for f in found) == [(12,), (14,)]
    assert {(f.category, f.stuck_on) for f in found} == {(Category.RANK_STUCK, "device")}
    assert {f.sequence_id for f in found} == {42806}


def test_two_hosts_that_hold_their_lock_are_named() -> None:
    found = causes(load(DUMPS / "nvrx_lock_gil_2nd").findings)
    assert sorted(f.culprit_ranks for f in found) == [(10,), (15,)]
    assert {(f.category, f.stuck_on) for f in found} == {(Category.MISSING_RANK, "host")}


def _timed(number: int, began: bool, done: bool = False) -> dict[str, Any]:
    created = 1_790_000_000_000_000_000 + number
    return {
        "record_id": number - 1, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": "nccl:all_reduce", "time_created_ns": created,
        "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
        "state": "completed" if done else "started" if began else "scheduled",
        "time_discovered_started_ns": created + 1 if began else None,
        "time_discovered_completed_ns": created + 2 if done else None,
        "retired": done, "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip


def _write(folder: Path, rank: int, entries: list[dict[str, Any]]) -> None:
    status = {
        "last_enqueued_collective": entries[-1]["collective_seq_id"],
        "last_started_collective": -1,
        "last_completed_collective": sum(entry["retired"] for entry in entries),
    }
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    data = {"version": "2.10", "pg_config": groups, "pg_status": {"0": status}, "entries": entries}
    (folder / f"_dump_{rank}").write_bytes(pickle.dumps(data, 2))


@pytest.mark.parametrize("only_open", [False, True])
def test_in_files_with_times_the_device_that_has_not_begun_what_the_others_are_in_is_named(
    tmp_path: Path, only_open: bool
) -> None:
    """The files are made in the form of NCCL's recorder with timing."""
    for rank in range(3):
        calls = [_timed(1, began=True, done=True), _timed(2, began=rank != 1)]
        _write(tmp_path, rank, calls[1:] if only_open else calls)
    (cause,) = causes(load(tmp_path).findings)
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.RANK_STUCK, (1,), "device")
    assert cause.waiting_ranks == (0, 2)


def test_in_files_with_times_a_collective_that_no_device_has_begun_is_no_fault(tmp_path: Path) -> None:
    for rank in range(3):
        _write(tmp_path, rank, [_timed(1, began=True, done=True), _timed(2, began=False)])
    assert load(tmp_path).findings == []


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
