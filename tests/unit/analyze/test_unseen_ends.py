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


def written(folder: Path, late: int | None, capacity: int = 1000) -> None:
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


@pytest.mark.parametrize(("late", "capacity"), [*((rank, 1000) for rank in RANKS), (3, 3), (None, 1000)])
def test_a_rank_that_does_not_join_is_named(tmp_path: Path, late: int | None, capacity: int) -> None:
    """Also where older calls were overwritten."""
    written(tmp_path, late, capacity)
    found = [(one.category, one.culprit_ranks, one.sequence_id) for one in load(tmp_path).findings]
    assert found == ([] if late is None else [(Category.MISSING_RANK, (late,), 7)])


@pytest.mark.parametrize(("received", "found"), [(None, Category.UNMATCHED_P2P), (9, Category.SIZE_MISMATCH)])
def test_a_message_without_its_other_half_or_with_another_is_found(
    tmp_path: Path, received: int | None, found: Category
) -> None:
    rings = [RankRing(tmp_path / "rings", rank, len(RANKS)) for rank in RANKS]
    rings[0].call(message(0), state=RecordState.UNKNOWN)
    if received is not None:
        rings[1].call(message(1, received), state=RecordState.UNKNOWN)
    for ring in rings:
        ring.write(tmp_path)
    assert [finding.category for finding in load(tmp_path).findings] == [found]
