"""The first decision in which a culprit differed from its peers: evidence beside a fault, never a fault alone."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.decision_names import COMPILATION, GRAPH_REPLAYS, LAUNCHED
from otel_fr.match import Decision, Finding, Rank
from otel_fr.match.texts.hints import Divergence, divergences, first_divergence, replays_text
from tests.support.evidence import call, cause, verdict
from tests.unit.match.test_whereabouts import alive, waiting


def decided(name: str, *runs: tuple[object, int, int], steps: bool = True) -> list[Decision]:
    """Decisions of one name: (value, first, last); the n-th is made in step n - 1."""
    return [
        Decision(name, str(value), zlib.crc32(str(value).encode()), first, last, first - 1 if steps else None)
        for value, first, last in runs
    ]


STEADY = decided("skip_batch", (False, 1, 820))
ASTRAY = decided("skip_batch", (False, 1, 812), (True, 813, 813))


def rank_of(of: list[Decision], number: int = 0, step: int | None = None) -> Rank:
    return Rank(number, decisions=tuple(of), step=step)


def text_of(own: list[Decision], *others: list[Decision], step: int | None = None, steps: int | None = None) -> str:
    """Of rank 0, in ``step``; its peers are in ``steps``."""
    ranks = {0: rank_of(own, 0, step)} | {at: rank_of(of, at, steps) for at, of in enumerate(others, 1)}
    return "; ".join(divergences([0], range(len(ranks)), ranks))


def test_the_first_difference_is_named() -> None:
    said = "the first decision in which rank 0 differed: skip_batch=True at step 812; the others False"
    assert text_of(ASTRAY, STEADY, STEADY) == said
    assert text_of(ASTRAY, STEADY).endswith("at step 812; rank 1 False")


def test_the_earliest_of_several_is_named() -> None:
    lr = decided("lr", (0.1, 1, 700), (0.05, 701, 813))
    own = [*decided("skip_batch", (False, 1, 812)), lr[0], lr[1], ASTRAY[1]]
    peer = [*STEADY, *decided("lr", (0.1, 1, 820))]
    assert "lr=0.05 at step 700; the others 0.1" in text_of(own, peer, peer)


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (STEADY, [STEADY, STEADY]),
        (STEADY, [[], []]),
        ([], [STEADY]),
        # Always different, as which rank writes the log is.
        (decided("writes_log", (True, 1, 9)), [decided("writes_log", (False, 1, 9))] * 2),
        # The peers differ among themselves, as sizes of batches do.
        (
            decided("size", (8, 1, 4), (7, 5, 9)),
            [decided("size", (8, 1, 4), (6, 5, 9)), decided("size", (8, 1, 4), (5, 5, 9))],
        ),
        # Only the newest are kept: whether they had agreed before is not known.
        (decided("scale", (2, 50, 60)), [decided("scale", (1, 50, 60))]),
        # The peers have not come that far.
        (decided("skip", (False, 1, 9), (True, 10, 10)), [decided("skip", (False, 1, 9))]),
        # The same changes, one after the other.
        (decided("scale", (2, 1, 50), (1, 51, 60)), [decided("scale", (2, 1, 50), (1, 51, 90))]),
    ],
)
def test_what_tells_nothing_is_not_said(own: list[Decision], others: list[list[Decision]]) -> None:
    assert first_divergence(rank_of(own), [rank_of(of) for of in others]) is None
    assert text_of(own, *others) == ""


def test_a_rank_that_did_not_change_with_the_others() -> None:
    runs = [("train", 1, 9)], [("train", 1, 8), ("eval", 9, 9)]
    own, peer = (decided("phase", *of) for of in runs)
    assert text_of(own, peer, peer).endswith("differed: phase=train at step 8; the others eval")
    own, peer = (decided("phase", *of, steps=False) for of in runs)
    assert text_of(own, peer, peer).endswith("differed: phase=train; the others eval")


# ---- by step


def in_steps(name: str, *values: tuple[int, object]) -> list[Decision]:
    """Decisions of one name, as they were made: (step, value). Equal ones are one run."""
    found: list[Decision] = []
    for number, (step, value) in enumerate(values, 1):
        if found and found[-1].value == str(value):
            found[-1] = found[-1]._replace(last=number)
        else:
            found.append(Decision(name, str(value), zlib.crc32(str(value).encode()), number, number, step))
    return found


def test_a_decision_that_a_rank_left_out_does_not_shift_the_later_ones() -> None:
    """Rank 0 left its steps 3 and 4 out; in step 7 all changed."""
    peer = in_steps("lr", *[(step, 0.1 if step < 7 else 0.05) for step in range(10)])
    own = in_steps("lr", *[(step, 0.1 if step < 7 else 0.05) for step in range(10) if step not in (3, 4)])
    assert text_of(own, peer, peer) == ""
    astray = in_steps("lr", *[(step, 0.1 if step < 6 else 0.05) for step in range(10) if step not in (3, 4)])
    assert text_of(astray, peer, peer).endswith("lr=0.05 at step 6; the others 0.1")


def test_ranks_that_count_steps_differently_are_compared_by_the_number_of_the_decision() -> None:
    """An optimizer skipped a step on rank 0, whose steps are counted by the optimizer."""
    peer = in_steps("lr", *[(step, 0.1 if step < 7 else 0.05) for step in range(10)])
    own = [item._replace(step=(item.step or 0) - 1) if item.first > 1 else item for item in peer]
    assert text_of(own, peer, peer) == ""


def test_several_decisions_in_one_step() -> None:
    peer = in_steps("micro", (1, "a"), (1, "b"), (2, "a"), (2, "b"))
    assert text_of(in_steps("micro", (1, "a"), (1, "b"), (2, "a"), (2, "c")), peer, peer).endswith(
        "micro=c at step 2; the others b"
    )
    # Not yet come so far, which is no difference; and passed without.
    assert text_of(in_steps("micro", (1, "a"), (1, "b"), (2, "a")), peer, peer) == ""
    left_out = in_steps("micro", (1, "a"), (1, "b"), (2, "a"), (3, "c"))
    assert text_of(left_out, peer, peer).endswith("micro=a at step 2; the others b")


def test_a_rank_in_a_later_step_has_decided() -> None:
    own, peer = in_steps("scale", (1, 8), (2, 8)), in_steps("scale", (1, 8), (2, 8), (3, 4))
    assert text_of(own, peer, peer) == ""
    assert text_of(own, peer, peer, step=4).endswith("scale=8 at step 3; the others 4")


def compiled(*events: tuple[int | None, str]) -> list[Decision]:
    return [
        Decision(COMPILATION, text, zlib.crc32(text.encode()), number, number, step)
        for number, (step, text) in enumerate(events, 1)
    ]


def test_a_compilation_that_the_peers_did_not_make_is_named() -> None:
    own, peer = compiled((0, "forward"), (9, "forward: size")), compiled((0, "forward"))
    said = text_of(own, peer, peer, step=9, steps=9)
    assert said.endswith("rank 0 differed: torch.compile=forward: size at step 9; the others none")
    assert text_of(own, peer, peer, step=10, steps=9) == said


@pytest.mark.parametrize(
    ("own", "peer", "step", "steps"),
    [
        # All compiled it, though not at the same number: rank 0 has compiled another function before.
        (compiled((None, "warm-up"), (0, "forward"), (9, "forward")), compiled((0, "forward"), (9, "forward")), 9, 9),
        # Long ago: it is not why this happens now.
        (compiled((0, "warm-up")), compiled((0, "forward")), 800, 800),
        # The peers have not come so far.
        (compiled((0, "forward"), (9, "forward")), compiled((0, "forward")), 9, 8),
    ],
)
def test_compilations_that_tell_nothing(own: list[Decision], peer: list[Decision], step: int, steps: int) -> None:
    assert text_of(own, peer, peer, step=step, steps=steps) == ""


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from("abc")), min_size=1, max_size=30),
    st.lists(st.integers(1, 30), min_size=3, max_size=3),
)
def test_ranks_that_decide_alike_never_differ_wherever_each_of_them_is(
    program: list[tuple[int, str]], reached: list[int]
) -> None:
    """Any number of decisions in any step; each rank has run the program up to some point."""
    at, made = 0, []
    for more, value in program:
        at += more
        made.append((at, value))
    own, *others = [
        Rank(number, decisions=tuple(in_steps("name", *made[:count])), step=made[min(count, len(made)) - 1][0])
        for number, count in enumerate(reached)
    ]
    assert first_divergence(own, others) is None


@given(st.integers(1, 20), st.integers(0, 5), st.booleans())
def test_one_other_decision_is_found_wherever_it_is(step: int, more: int, stays: bool) -> None:
    """In one step rank 0 decides otherwise; after that, as the others or never as they."""
    peer = Rank(1, decisions=tuple(in_steps("name", *[(at, "no") for at in range(step + more + 1)])), step=step + more)
    values = [(at, "yes" if at == step or (stays and at > step) else "no") for at in range(step + more + 1)]
    found = first_divergence(Rank(0, decisions=tuple(in_steps("name", *values)), step=step + more), [peer, peer])
    assert found == Divergence("name", "yes", "no", step)


def judged(*decisions: list[Decision]) -> Finding:
    """Rank 1 has not joined the fifth collective, in which the others wait."""
    ranks = [waiting(0, 5), alive(1, w=4), waiting(2, 5)]
    for rank in ranks:
        rank.decisions = tuple(decisions[rank.rank])
    return cause([call(rank) for rank in (0, 2)], ranks)


def test_the_culprits_finding_has_it_and_nothing_else_changes() -> None:
    found, plain = judged(STEADY, ASTRAY, STEADY), judged([], [], [])
    assert found.culprit_ranks == (1,)
    assert found.details[:-1] == plain.details
    assert (found.differed, plain.differed) == (found.details[-1:], ())
    assert "skip_batch=True at step 812" in found.details[-1]
    assert (plain.summary, plain.key) == (found.summary, found.key)


def test_differences_of_healthy_ranks_are_no_fault() -> None:
    ranks = [alive(rank, w=5) for rank in range(3)]
    for rank in ranks:
        rank.decisions = tuple(ASTRAY if rank.rank == 1 else STEADY)
    assert verdict([], ranks) == []


def replayed(*counts: int) -> dict[int, Rank]:
    """Ranks that have launched so many replays of CUDA graphs; 0: none that is known."""
    made = [decided(GRAPH_REPLAYS, (LAUNCHED, 1, count), steps=False) if count else [] for count in counts]
    return {number: rank_of(of, number) for number, of in enumerate(made)}


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((119, 120, 120, 120), "replays of CUDA graphs launched: 119 by rank 0, 120 by ranks 1-3"),
        ((119, 120, 121), "replays of CUDA graphs launched: 119 by rank 0, 120 to 121 by ranks 1, 2"),
        ((120, 120, 120), "replays of CUDA graphs launched: 120 by each of ranks 0-2"),
        ((120, 0, 0), ""),
        ((0, 120, 120), ""),
    ],
)
def test_how_many_graphs_a_culprit_has_replayed_is_said(counts: tuple[int, ...], said: str) -> None:
    ranks = replayed(*counts)
    assert replays_text([0], range(len(counts)), ranks) == said
    assert divergences([0], range(len(counts)), ranks) == (), "counts are no decision in which ranks differ"
