"""Ids: equal on all ranks for the same facts, different for different ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr import identity

ranks = st.lists(st.integers(0, 5000), max_size=40)


@given(ranks)
def test_rank_lists_survive_encoding_in_their_order(given_ranks: list[int]) -> None:
    assert identity.decode_ranks(identity.encode_ranks(given_ranks)) == given_ranks


@given(st.integers(0, 100), st.integers(1, 9), st.integers(3, 4000))
def test_regular_rank_lists_are_short_whatever_the_world_size(start: int, step: int, count: int) -> None:
    members = list(range(start, start + step * count, step))
    text = identity.encode_ranks(members)
    assert len(text) < 20
    assert identity.decode_ranks(text) == members


@given(st.integers(3, 4000), st.integers(3, 4000), st.integers(2, 9))
def test_long_runs_of_ranks_end_where_they_end(before: int, after: int, gap: int) -> None:
    first = before - 1 + gap
    assert identity.encode_ranks([*range(before), *range(first, first + after)]) == (
        f"0-{before - 1},{first}-{first + after - 1}"
    )


@pytest.mark.parametrize("text", ["0-999999999999", "0-10:0", "a", "1-b", "3-1:x", "9" * 5_000])
def test_a_rank_list_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^rank list '.*' (does not have the form|names too many ranks)"):
        identity.decode_ranks(text)


@pytest.mark.parametrize("text", ["0-3", "0,2,4,8", "0-2,7", "5,0-2"])
def test_single_ranks_count_towards_the_limit_as_ranges_do(text: str) -> None:
    assert len(identity.decode_ranks(text, limit=4)) == 4
    with pytest.raises(ValueError, match="names too many ranks"):
        identity.decode_ranks(text, limit=3)


def test_all_ranks_compute_the_same_trace_and_their_own_spans() -> None:
    run = identity.run_id("job", 0, "nonce")
    group = identity.group_id("0", range(4))
    trace = identity.trace_id(run, group, "collective", 7)
    assert trace == identity.trace_id(run, identity.group_id("0", [0, 1, 2, 3]), "collective", 7)
    assert len(trace) == 16
    spans = {identity.span_id(trace, rank, 3) for rank in range(4)} | {identity.root_span_id(trace)}
    assert len(spans) == 5
    assert {len(span) for span in spans} == {8}


def test_distinct_collectives_have_distinct_traces() -> None:
    run = identity.run_id("job", 0, "nonce")
    group = identity.group_id("1", [0, 1])
    traces = {
        identity.trace_id(run, group, "collective", 1),
        identity.trace_id(run, group, "collective", 2),
        identity.trace_id(run, group, "monitored_barrier", 1),
        identity.trace_id(run, identity.group_id("1", [0, 1], generation=1), "collective", 1),
        identity.trace_id(run, identity.group_id("1", [2, 3]), "collective", 1),
        identity.trace_id(identity.run_id("job", 1, "nonce"), group, "collective", 1),
        identity.trace_id(identity.run_id("job", 0, "other"), group, "collective", 1),
        identity.p2p_trace_id(run, group, 0, 1, 0, 0),
        identity.p2p_trace_id(run, group, 1, 0, 0, 0),
        identity.p2p_trace_id(run, group, 0, 1, 5, 0),
    }
    assert len(traces) == 10
