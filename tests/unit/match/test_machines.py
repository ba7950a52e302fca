"""On which machines ranks run, as sentences name them, and what a finding says of the places of its ranks."""

from __future__ import annotations

from signal import SIGKILL, SIGSEGV
from typing import Any

import pytest

from otel_fr.match import Category, Ending, Group, Place
from otel_fr.match.facts.machines import Machines
from otel_fr.match.finding import MAX_PLACED_CULPRITS, MAX_PLACED_WAITING, Finding
from otel_fr.presentation import place_text, with_wait
from tests.support.evidence import LONG, call, cause, judge, rank
from tests.support.verdicts import causes

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
    last = max(places)
    ending: dict[str, Any] = {"ending": Ending.KILLED, "signal": 15} if ended else {}
    ranks = [rank(r, 4 if r == last else 5, place=place, **ending) for r, place in places.items()]
    return cause([call(r) for r in places if r != last], ranks, size=len(places))


def test_a_finding_has_the_places_of_its_ranks_and_no_time_in_its_first_sentence() -> None:
    finding = hang({0: Place("gpu-16", 1, 0), 1: Place("gpu-17", 2, 0), 2: Place("gpu-17", 3, 1)})
    assert (finding.category, finding.is_waiting, finding.age) == (Category.MISSING_RANK, True, LONG)
    assert finding.places == {0: Place("gpu-16", 1, 0), 1: Place("gpu-17", 2, 0), 2: Place("gpu-17", 3, 1)}
    assert with_wait(finding.summary, "for 47 s").endswith("ranks 0, 1 wait for 47 s")


def test_ranks_that_have_ended_wait_no_more() -> None:
    finding = hang({0: Place("a"), 1: Place("a"), 2: Place("b")}, ended=True)
    assert not finding.is_waiting
    assert with_wait("rank 0 waits in all_reduce number 5; nothing is known of rank 1", "for 47 s").endswith(
        "rank 1 (waiting for 47 s)"
    )


def test_places_are_bounded_by_the_culprits_and_some_who_wait() -> None:
    places = {rank: Place(f"gpu-{rank // 8}") for rank in range(400)}
    finding = hang(places)
    assert len(finding.places) == 1 + MAX_PLACED_WAITING < MAX_PLACED_CULPRITS
    assert finding.places[399] == Place("gpu-49")


def test_a_lost_machine_is_one_fault_with_all_its_ranks() -> None:
    """Three hosts of two ranks, groups of the first and of the second rank of each; the last host is lost."""
    firsts, seconds = Group("a", "1", "dp", (0, 2, 4)), Group("b", "2", "dp", (1, 3, 5))
    ranks = []
    for number in range(6):
        group, place = ("a", "b")[number % 2], Place(f"n{number // 2}", 100 + number, number % 2)
        silent: dict[str, Any] = {"ending": Ending.UNKNOWN, "heard_at": 1_800_000_000.0} if number > 3 else {}
        ranks.append(rank(number, counts={group: (4 if silent else 5, 4)}, place=place, **silent))
    calls = [call(number, 5, group=(firsts, seconds)[number % 2]) for number in range(4)]
    found = cause(calls, ranks, firsts, seconds, size=6)
    assert (found.culprit_ranks, found.stuck_on) == ((4, 5), "lost")
    assert found.summary.startswith("n2 is lost: no reports from ranks 4, 5 since ")


@pytest.mark.parametrize(
    ("ago", "signal", "is_one"), [(5.2, SIGKILL, True), (30.0, SIGKILL, False), (5.2, SIGSEGV, False)]
)
def test_ranks_of_several_groups_that_a_signal_ends_together_are_one_fault(
    ago: float, signal: int, is_one: bool
) -> None:
    """Ranks 2 and 3 of a machine; a rank of another machine waits for each in a group of its own."""
    groups = [Group(f"d{at}", f"{at + 1}", "dp", (at, at + 2)) for at in (0, 1)]
    end: dict[str, Any] = {"ending": Ending.KILLED, "idle": 5.0, "place": Place("n1")}
    ranks = [rank(r, counts={f"d{r}": (5, 4)}, place=Place("n0")) for r in (0, 1)]
    ranks.append(rank(2, counts={"d0": (4, 4)}, signal=SIGKILL, ended_for=5.0, **end))
    ranks.append(rank(3, counts={"d1": (4, 4)}, signal=signal, ended_for=ago, **end))
    found = causes(judge([call(r, 5, group=f"d{r}") for r in (0, 1)], ranks, groups, 4))
    assert [one.culprit_ranks for one in found] == ([(2, 3)] if is_one else [(2,), (3,)])
    assert {one.category for one in found} == {Category.RANK_DEAD}


@pytest.mark.parametrize(("reached", "did"), [(4, "did not join"), (5, "failed in")])
def test_only_the_members_of_a_group_failed_in_its_call(reached: int, did: str) -> None:
    """As above; ranks 2 and 3 have joined the calls in which they are awaited, or not."""
    groups = [Group(f"d{at}", f"{at + 1}", "dp", (at, at + 2)) for at in (0, 1)]
    end: dict[str, Any] = {"ending": Ending.KILLED, "signal": SIGKILL, "idle": 5.0, "ended_for": 5.0}
    ranks = [rank(r, counts={f"d{r}": (5, 4)}) for r in (0, 1)]
    ranks += [rank(r, counts={f"d{r - 2}": (reached, 4)}, **end) for r in (2, 3)]
    calls = [call(r, 5, group=f"d{r % 2}") for r in range(2 if reached < 5 else 4)]
    (found,) = causes(judge(calls, ranks, groups, 4))
    assert found.culprit_ranks == (2, 3)
    named = f"ranks 2, 3 were killed by signal 9 (SIGKILL); rank 2 {did} all_reduce number 5 of group dp (1)"
    assert found.summary == f"{named}; rank 0 waits"


@pytest.mark.parametrize(("ago", "culprits"), [(35.0, (2, 3)), (4.0, (2,))])
def test_a_rank_that_waited_for_another_one_is_no_victim_if_both_were_killed_at_once(
    ago: float, culprits: tuple[int, ...]
) -> None:
    """Rank 2 had not joined. A launcher kills rank 3, which waited for it, 30 s after it has asked it to end."""
    end: dict[str, Any] = {"ending": Ending.KILLED, "signal": SIGKILL, "idle": 40.0, "place": Place("n1")}
    ranks = [rank(r, counts={"w": (5, 4)}, place=Place("n0")) for r in (0, 1)]
    ranks += [rank(2, counts={"w": (4, 4)}, ended_for=35.0, **end), rank(3, counts={"w": (5, 4)}, ended_for=ago, **end)]
    calls = [call(r, 5) for r in (0, 1, 3)]
    found = causes(judge(calls, ranks, [Group("w", "0", "default_pg", (0, 1, 2, 3))], 4))
    assert [(one.category, one.culprit_ranks) for one in found] == [(Category.RANK_DEAD, culprits)]


def test_a_rank_that_is_named_with_others_is_not_behind_in_a_group_of_theirs() -> None:
    """Ranks 1 and 2 were killed at once; rank 0 waits for rank 1 in a group of the two."""
    end: dict[str, Any] = {"ending": Ending.KILLED, "signal": SIGKILL, "idle": 5.0, "ended_for": 5.0}
    ranks = [rank(0, counts={"d": (8, 7)}), rank(1, counts={"d": (5, 5)}, **end), rank(2, counts={"w": (3, 3)}, **end)]
    groups = [Group("d", "1", "dp", (0, 1)), Group("w", "0", "default_pg", (0, 1, 2))]
    (found,) = causes(judge([call(0, 8, group="d")], ranks, groups, 3))
    assert found.culprit_ranks == (1, 2)
    assert sum("behind" in text for text in found.details) == 1
