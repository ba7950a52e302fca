"""PyTorch's own analyzer reads otel-fr's files, and gives right verdicts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from otel_fr.dumps.torchview import view
from otel_fr.ring import KIND_GROUP, KIND_MONITORED, NewGroup, RecordState
from tests.support.rings import OPERATIONS, RankRing, signature
from tests.support.waiting import PATIENCE

types = pytest.importorskip("torch.distributed.flight_recorder.components.types")

WORLD = 3


def every_operation(ring: RankRing) -> None:
    """Make a healthy program for WORLD ranks, with every operation, including uneven operations."""
    r, n = ring.rank, WORLD
    uneven = tuple((i + 1,) for i in range(n))
    ring.call(signature("broadcast", root=0))
    ring.call(signature("barrier", ()))
    ring.call(signature("monitored_barrier", ()), kind=KIND_MONITORED)
    ring.call(signature("all_gather", ((2,),), output_sizes=((2,),) * n))
    ring.call(signature("all_gather", ((r + 1,),), output_sizes=uneven))
    ring.call(signature("reduce_scatter", uneven, output_sizes=((r + 1,),), reduce_op="sum"))
    ring.call(signature("reduce_scatter", ((2,),) * n, output_sizes=((2,),), reduce_op="sum"))
    ring.call(signature("all_gather_into_tensor", ((2, 3),), output_sizes=((2 * n, 3),)))
    ring.call(signature("reduce_scatter_tensor", ((2 * n, 3),), output_sizes=((2, 3),), reduce_op="sum"))
    crossed = tuple((r + i,) for i in range(n))
    ring.call(signature("all_to_all", crossed, output_sizes=crossed))
    # Rank r sends 1, 1 and 1 + r rows.
    received = (1, 1, 1) if r < 2 else (1, 2, 3)
    splits = {"input_splits": (1, 1, 1 + r), "output_splits": received}
    ring.call(signature("all_to_all_single", ((3 + r,),), output_sizes=((sum(received),),), **splits))
    ring.call(signature("gather", ((4,),), output_sizes=((4,),) * n if r == 1 else (), root=1))
    ring.call(signature("scatter", ((4,),) * n if r == 1 else (), output_sizes=((4,),), root=1))
    ring.call(signature("reduce", ((4,),), root=1, reduce_op="sum"))
    ring.call(signature("all_reduce_coalesced", ((4,), (5,)), reduce_op="sum"))
    ring.call(signature("all_gather_coalesced", ((4,), (5,)), output_sizes=((4,), (5,)) * n))
    ring.call(signature("all_gather_into_tensor_coalesced", ((4,), (5,)), output_sizes=((4 * n,), (5 * n,))))
    ring.call(signature("reduce_scatter_tensor_coalesced", ((4 * n,), (5 * n,)), output_sizes=((4,), (5,))))
    after, before = (r + 1) % n, (r - 1) % n
    for _ in range(2):
        ring.call(signature("send", ((7,),), peer=after, tag=0))
        ring.call(signature("recv", ((7,),), peer=before, tag=0))
        ring.call(signature("recv", ((9,),), peer=after, tag=3))
        ring.call(signature("send", ((9,),), peer=before, tag=3))
    if r < 2:
        pair = NewGroup("1", "pair", (0, 1))
        ring.call(signature("new_group", (), new_group=pair), kind=KIND_GROUP)
        ring.group("1", [0, 1], "pair")
        ring.call(signature("all_reduce", ((3,),), reduce_op="sum"), group="1")
        ring.group("0:split:[0, 1]", [0, 1], "half")
        half = NewGroup("0:split:[0, 1]", "half", (0, 1))
        ring.call(signature("split_group", (), new_group=half), kind=KIND_GROUP, group="0:split:[0, 1]")
        if r == 0:  # a rank may do so alone
            ring.call(signature("destroy_process_group", ()), kind=KIND_GROUP, group="1")
    for _ in range(3):
        ring.call(signature("all_reduce", reduce_op="sum"))


def torchfrtrace(folder: Path) -> str:
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def verdict(said: str) -> list[str]:
    """Return the lines that report a fault."""
    signs = (
        "Not all ranks",
        "missing ranks",
        "has errors",
        "Error",
        "MISMATCH",
        "cannot decide",
        "mismatch",
        "collective:",
    )
    return [line for line in said.splitlines() if any(sign in line for sign in signs)]


@pytest.mark.long
def test_a_healthy_job_of_every_operation_shows_no_fault(tmp_path: Path) -> None:
    for rank in range(WORLD):
        ring = RankRing(tmp_path / "rings", rank, WORLD)
        every_operation(ring)
        ring.write(tmp_path / "files")
    assert verdict(torchfrtrace(tmp_path / "files")) == []


def test_the_missing_rank_is_named(tmp_path: Path) -> None:
    for rank in range(WORLD):
        ring = RankRing(tmp_path / "rings", rank, WORLD)
        every_operation(ring)
        if rank != 2:
            ring.call(signature("all_reduce", ((8,),), reduce_op="max"), state=RecordState.IN_FLIGHT)
        ring.write(tmp_path / "files")
    assert verdict(torchfrtrace(tmp_path / "files")) == [
        "Not all ranks joining collective, sequence number: 21",
        "collective: gloo:all_reduce",
        "missing ranks: {2}",
    ]


@pytest.mark.long
def test_a_receive_that_was_never_posted_is_named(tmp_path: Path) -> None:
    for rank in range(WORLD):
        ring = RankRing(tmp_path / "rings", rank, WORLD)
        every_operation(ring)
        if rank == 2:
            ring.call(signature("send", ((5,),), peer=0, tag=0), state=RecordState.IN_FLIGHT)
        ring.write(tmp_path / "files")
    said = verdict(torchfrtrace(tmp_path / "files"))
    assert "collective: gloo:send 1->0" in said
    assert "missing ranks: {0}" in said


def test_every_operation_has_a_name_that_the_analyzer_knows() -> None:
    for sizes in (((2,), (2,)), ((2,), (3,)), ()):
        names = {view(operation, sizes, sizes).name for operation in OPERATIONS}
        assert names <= types.COLLECTIVES | types.P2P
