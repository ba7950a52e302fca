"""On which machines ranks run, as sentences name them, and what a finding says of the places of its ranks."""

from __future__ import annotations

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Evidence, Group, Place, Progress, Rank, Signature, diagnose
from otel_fr.match.machines import Machines
from otel_fr.match.model import MAX_PLACED_CULPRITS, MAX_PLACED_WAITING, Finding
from otel_fr.presentation import place_text, with_wait

EIGHT = {rank: Place(f"gpu-{rank // 8}", 4_000 + rank, rank % 8) for rank in range(64)}
"""Eight hosts with eight ranks each."""


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([2], "rank 2 (gpu-0, local rank 2)"),
        ([11], "rank 11 (gpu-1, local rank 3)"),
        ([8, 11], "ranks 8, 11 (gpu-1, local ranks 0, 3)"),
        (range(8, 16), "ranks 8-15 (all of gpu-1)"),
        (range(8, 32), "ranks 8-31 (all of gpu-1, gpu-2, gpu-3)"),
        (range(8, 64), "ranks 8-63 (all of gpu-1, gpu-2, gpu-3 and 4 more)"),
        ([3, 11], "ranks 3, 11 (gpu-0, gpu-1)"),
        (range(0, 64, 8), "ranks 0-56 step 8 (gpu-0, gpu-1, gpu-2 and 5 more)"),
        ([2, 99], "ranks 2, 99"),
        ([], "no rank"),
    ],
)
def test_ranks_are_named_with_their_machines(ranks: list[int], text: str) -> None:
    assert Machines(EIGHT).named(ranks) == text


def test_on_one_host_its_name_is_enough() -> None:
    machines = Machines({rank: Place("gpu-7", rank, rank) for rank in range(4)})
    assert machines.named([2]) == "rank 2 (gpu-7)"
    assert machines.named([0, 2]) == "ranks 0, 2 (gpu-7)"
    assert machines.named(range(4)) == "ranks 0-3 (gpu-7)"
    assert machines.each([[0], [2]]) == ["rank 0 (gpu-7)", "rank 2"]


def test_a_pod_is_named_with_its_node_and_a_gpu_if_it_is_not_that_of_the_local_rank() -> None:
    places = {
        0: Place("llama-0", 7, 0, "0", "llama-0", "gpu-17"),
        1: Place("llama-1", 7, 0, "GPU-8f2c", "llama-1", "gpu-18"),
    }
    assert Machines(places).named([0]) == "rank 0 (gpu-17, pod llama-0, local rank 0)"
    assert Machines(places).named([1]) == "rank 1 (gpu-18, pod llama-1, local rank 0, GPU GPU-8f2c)"
    assert place_text(*places[1]) == "gpu-18, pod llama-1, local rank 0, GPU GPU-8f2c, pid 7"


def test_names_of_machines_cannot_break_the_sentence() -> None:
    machines = Machines({0: Place("a\nb" * 300, None, 1), 1: Place("c")})
    assert "\n" not in machines.named([0])
    assert len(machines.named([0])) < 300


def hang(places: dict[int, Place], *, ended: bool = False) -> Finding:
    """All ranks but the last wait in a collective; ``ended``: and were killed by then."""
    world = Group("w", "0", "default_pg", tuple(places))
    last = max(places)
    signature = Signature("all_reduce", ((3,),), ((3,),), ("Float",), ("Float",), "sum")
    calls = [
        Call(
            rank=rank, group="w", stream="collective", sequence_id=5, record=5, signature=signature,
            state=CallState.IN_FLIGHT, age=47.0,
        )
        for rank in places
        if rank != last
    ]  # fmt: skip
    ranks = {
        rank: Rank(rank, place=place, idle=47.0, progress={"w": Progress(4 if rank == last else 5, 4)})
        for rank, place in places.items()
    }
    ranks[last].site = "ddp.py:40 load_shard"
    if ended:
        for rank in ranks.values():
            rank.ending, rank.signal = Ending.KILLED, 15
    (finding,) = diagnose(Evidence(groups={"w": world}, calls=calls, ranks=ranks, window=5.0, world_size=len(places)))
    return finding


def test_the_first_sentence_has_machine_rank_line_of_code_and_who_waits_but_no_time() -> None:
    finding = hang({0: Place("gpu-16", 1, 0), 1: Place("gpu-17", 2, 0), 2: Place("gpu-17", 3, 1)})
    assert finding.category is Category.MISSING_RANK
    assert finding.summary == (
        "rank 2 (gpu-17, local rank 1) did not join all_reduce number 5 of group default_pg (0);"
        " rank 2 is alive at ddp.py:40 load_shard; ranks 0, 1 wait"
    )
    assert (finding.is_waiting, finding.age) == (True, 47.0)
    assert finding.places == {0: Place("gpu-16", 1, 0), 1: Place("gpu-17", 2, 0), 2: Place("gpu-17", 3, 1)}
    assert with_wait(finding.summary, "for 47 s").endswith("ranks 0, 1 wait for 47 s")


def test_ranks_that_have_ended_wait_no_more() -> None:
    finding = hang({0: Place("a"), 1: Place("a"), 2: Place("b")}, ended=True)
    assert not finding.is_waiting
    assert finding.summary.endswith("; ranks 0, 1 waited for 47.0 s")
    assert with_wait("rank 0 waits in all_reduce number 5; nothing is known of rank 1", "for 47 s").endswith(
        "rank 1 (waiting for 47 s)"
    )


def test_places_are_bounded_by_the_culprits_and_some_who_wait() -> None:
    places = {rank: Place(f"gpu-{rank // 8}") for rank in range(400)}
    finding = hang(places)
    assert len(finding.places) == 1 + MAX_PLACED_WAITING < MAX_PLACED_CULPRITS
    assert finding.places[399] == Place("gpu-49")
