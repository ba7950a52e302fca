"""Real NCCL files of a 16-rank Megatron job with faults injected on two ranks: on their devices, and on their hosts."""

from __future__ import annotations

from otel_fr.analyze import load
from otel_fr.match import Category
from tests.support.paths import DUMPS
from tests.support.verdicts import causes


def test_two_devices_that_stopped_completing_are_named() -> None:
    found = causes(load(DUMPS / "nvrx_gpu_error_1st").findings)
    assert sorted(f.culprit_ranks for f in found) == [(12,), (14,)]
    assert {(f.category, f.stuck_on) for f in found} == {(Category.RANK_STUCK, "device")}
    assert {f.sequence_id for f in found} == {42806}


def test_two_hosts_that_hold_their_lock_are_named() -> None:
    found = causes(load(DUMPS / "nvrx_lock_gil_2nd").findings)
    assert sorted(f.culprit_ranks for f in found) == [(10,), (15,)]
    assert {(f.category, f.stuck_on) for f in found} == {(Category.MISSING_RANK, "host")}
