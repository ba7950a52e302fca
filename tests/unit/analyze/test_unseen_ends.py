"""Files of ranks whose backend does not show when calls end (NCCL): a rank that stays behind is named, as live."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_fr.analyze import load
from otel_fr.match import Category
from otel_fr.ring import RecordState, SignatureDef
from tests.support.rings import RANKS, RankRing, float_signature, signature

SUM = float_signature()


def gather(rank: int) -> SignatureDef:
    """Only the root has outputs."""
    outputs = ((3, 4),) * len(RANKS) if rank == 0 else ()
    return signature("gather", root=0, output_sizes=outputs)


def message(rank: int, length: int = 8) -> SignatureDef:
    """From rank 0 to rank 1."""
    return signature("send" if rank == 0 else "recv", ((length,),), peer=1 - rank, tag=0)


def written(folder: Path, late: int, capacity: int = 1000) -> None:
    """Files of ranks that have all made a last call, except ``late``."""
    rings = [RankRing(folder / "rings", rank, len(RANKS), capacity) for rank in RANKS]
    for ring in rings:
        for _ in range(5):
            ring.call(SUM, state=RecordState.UNKNOWN)
        ring.call(gather(ring.rank), state=RecordState.UNKNOWN)
        if ring.rank < 2:
            ring.call(message(ring.rank), state=RecordState.UNKNOWN)
        if ring.rank != late:
            ring.call(SUM, state=RecordState.UNKNOWN)
        ring.write(folder)


@pytest.mark.parametrize("late", RANKS)
def test_a_rank_that_does_not_join_is_named(tmp_path: Path, late: int) -> None:
    written(tmp_path, late)
    (finding,) = load(tmp_path).findings
    assert (finding.category, finding.culprit_ranks, finding.sequence_id) == (Category.MISSING_RANK, (late,), 7)
    assert finding.waiting_ranks == tuple(rank for rank in RANKS if rank != late)


def test_so_it_is_where_older_calls_were_overwritten(tmp_path: Path) -> None:
    written(tmp_path, 3, capacity=3)
    assert [finding.culprit_ranks for finding in load(tmp_path).findings] == [(3,)]


def test_all_joined_is_no_fault(tmp_path: Path) -> None:
    written(tmp_path, late=-1)
    assert load(tmp_path).findings == []


def test_a_message_without_its_other_half_is_waited_for(tmp_path: Path) -> None:
    rings = [RankRing(tmp_path / "rings", rank, len(RANKS)) for rank in RANKS]
    rings[0].call(message(0), state=RecordState.UNKNOWN)
    for ring in rings:
        ring.write(tmp_path)
    assert [finding.culprit_ranks for finding in load(tmp_path).findings] == [(1,)]


def test_messages_that_do_not_fit_together_are_still_found(tmp_path: Path) -> None:
    rings = [RankRing(tmp_path / "rings", rank, len(RANKS)) for rank in RANKS]
    rings[0].call(message(0, 8), state=RecordState.UNKNOWN)
    rings[1].call(message(1, 9), state=RecordState.UNKNOWN)
    for ring in rings:
        ring.write(tmp_path)
    assert [finding.category for finding in load(tmp_path).findings] == [Category.SIZE_MISMATCH]
