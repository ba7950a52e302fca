"""The table of operations: what must hold between its columns, and what the sets say that are made from it."""

from __future__ import annotations

from otel_fr.operations import (
    COMPARED,
    ENDS_TOGETHER,
    ENDS_TOGETHER_ON_DEVICE,
    MESSAGES,
    NEEDS_EVERY_RANK,
    OPERATIONS,
    OPERATORS,
    ROOTED,
    SPELLINGS,
    family,
    other_half,
    way,
)


def test_what_ends_together_needs_every_rank_and_all_of_that_do_devices_end_together() -> None:
    assert ENDS_TOGETHER < ENDS_TOGETHER_ON_DEVICE
    assert {"monitored_barrier"} == NEEDS_EVERY_RANK - ENDS_TOGETHER_ON_DEVICE
    # gloo tells the ends of all but the reduce_scatters.
    assert {family(name) for name in ENDS_TOGETHER_ON_DEVICE - ENDS_TOGETHER} == {"reduce_scatter"}


def test_an_operation_with_a_root_needs_not_every_rank() -> None:
    assert not ROOTED & NEEDS_EVERY_RANK


def test_a_spelling_is_that_of_one_operation() -> None:
    words = [word for one in OPERATIONS.values() for word in {one.name, *one.operators, *one.spellings.split()}]
    assert sorted(words) == sorted(SPELLINGS)
    assert set(OPERATORS.values()) == {name for name, one in OPERATIONS.items() if one.kind != "group"}


def test_families_are_those_of_the_variants() -> None:
    for name in OPERATIONS.keys() - MESSAGES:
        assert name.startswith(family(name))
        assert family(family(name)) == family(name)
    assert family("send") == family("recv")
    assert family("_some_new_operation") == "_some_new_operation"


def test_what_is_compared_has_a_side_that_every_member_has() -> None:
    for name in COMPARED:
        one = OPERATIONS[name]
        assert one.sizes or one.pieces in ("root", "own", "splits")


def test_the_halves_of_a_message() -> None:
    assert way("send", 3, 5) == way("recv", 5, 3) == (3, 5)
    assert other_half(other_half("send")) == "send"
