"""Leaving out what all ranks' columns settle changes no verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.analyze.assemble.run_columns import RunColumns
from otel_fr.analyze.assemble.runs import build_runs
from otel_fr.dumps.entry import Entry
from otel_fr.dumps.model import Dump, GroupInfo
from otel_fr.match import CallState, Finding, Signature, diagnose
from tests.support.entries import entries_of

RANKS = 3
OPERATIONS = [
    Signature("all_reduce", ((4,),), ((4,),), ("Float",), ("Float",)),
    Signature("broadcast", ((4,),), ((4,),), ("Float",), ("Float",)),
    Signature("all_gather", ((2,),), ((2,),) * RANKS, ("Float",), ("Float",) * RANKS),
    Signature("all_gather", ((2,),), ((2,), (3,), (2,)), ("Float",), ("Float",) * RANKS),
    Signature("all_to_all_single", ((6,),), ((6,),), ("Float",), ("Float",), input_splits=(1, 2, 3)),
    Signature("barrier"),
]
ODD = st.tuples(
    st.integers(0, RANKS - 1),
    st.integers(1, 8),
    st.sampled_from(["missing", "other", "open", "twice", "failed"]),
    st.sampled_from(OPERATIONS),
)


def job(program: list[Signature], odd: list[tuple[int, int, str, Signature]], first: list[int]) -> list[Dump]:
    """The files of ranks that all issue ``program``; ``odd`` is what differs, ``first`` how many calls are lost."""
    dumps = []
    for rank in range(RANKS):
        entries: list[Entry] = []
        reach = len(program)
        for number, what in enumerate(program, 1):
            here = {how: other for at, which, how, other in odd if (at, which) == (rank, number)}
            if "missing" in here:
                reach = number - 1
                break
            state = (
                CallState.IN_FLIGHT if "open" in here else CallState.FAILED if "failed" in here else CallState.COMPLETED
            )
            for _ in range(1 + ("twice" in here)):
                call = Entry("g", "collective", number, len(entries), here.get("other", what), state, duration=1.0)
                entries.append(call)
        entries = [entry for entry in entries if entry.sequence_id > first[rank]]
        group = GroupInfo(
            key="g",
            id="",
            name="0",
            description="default_pg",
            ranks=tuple(range(RANKS)),
            enqueued=reach,
            completed=reach,
            first_recorded=first[rank] + 1,
        )
        partial = first[rank] > 0
        dumps.append(
            Dump(
                rank=rank,
                source="pytorch",
                path=f"trace_{rank}",
                version="2.10",
                groups={"g": group},
                entries=entries_of(entries),
                partial=partial,
            )
        )
    return dumps


@given(
    program=st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=8),
    odd=st.lists(ODD, max_size=3),
    first=st.lists(st.integers(0, 4), min_size=RANKS, max_size=RANKS),
)
def test_the_verdict_is_that_of_all_calls(
    program: list[Signature], odd: list[tuple[int, int, str, Signature]], first: list[int]
) -> None:
    found: list[list[Finding]] = []
    counts: list[int] = []
    for decided in (RunColumns.decided, nothing_settled):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunColumns, "decided", decided)
            ((run,), _) = build_runs(job(program, odd, first))
        found.append(diagnose(run.evidence))
        counts.append(len(run.evidence.calls))
    assert found[0] == found[1]
    assert counts[0] <= counts[1]


def nothing_settled(board: RunColumns) -> list[Any]:
    return [np.zeros(len(group), np.bool_) for group in board.group]


def test_of_a_healthy_job_only_the_newest_calls_are_looked_at() -> None:
    ((run,), _) = build_runs(job([OPERATIONS[0], OPERATIONS[2]] * 50, [], [0, 0, 0]))
    assert [(call.rank, call.sequence_id) for call in run.evidence.calls] == [(0, 100), (1, 100), (2, 100)]


def test_an_uneven_list_operation_is_looked_at() -> None:
    ((run,), _) = build_runs(job([OPERATIONS[3], *OPERATIONS[:1]], [], [0, 0, 0]))
    assert {call.sequence_id for call in run.evidence.calls} == {1, 2}
