"""What is kept of runs: bounded whatever comes, the same whatever the order in which it comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otel_fr_collector.incidents.incident import ChangeKind
from otel_fr_collector.jobs import groups
from otel_fr_collector.jobs.calls import Interner, RankCall, SpanCall, Template
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.jobs.run_spans import add_spans
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.outlets import incident_text as present

from otel_fr.match import CallState, Group, Place, Signature
from tests.support.incident_data import incident_data
from tests.support.told import new_run, run_in

GROUP = Group("g", "0", "default_pg", (0, 1, 2))
INTERNER = Interner()


def rank_call(
    rank: int, seq: int, state: CallState = CallState.COMPLETED, size: int = 3, record: int | None = None
) -> RankCall:
    signature = INTERNER.signature(Signature("all_reduce", ((size,),), ((size,),), ("Float",), ("Float",), "sum"))
    return RankCall(
        rank, seq if record is None else record, "g", "collective", seq, signature, state, enqueued_wall=1.0
    )


def call(seq: int, group: Group = GROUP, size: int = 3) -> SpanCall:
    template = Template(group, size, rank_call(0, 0).signature, 0, "collective", CallState.COMPLETED)
    return template, seq, seq, 0, 10**18, 10**18 + 1_000, None


events = [
    rank_call(rank, seq, state)
    for rank in range(3)
    for seq in range(4)
    for state in (CallState.IN_FLIGHT, CallState.COMPLETED)
]


@given(st.permutations(events), st.lists(st.sampled_from(events), max_size=10))
def test_a_healthy_group_leaves_nothing_behind_in_any_order(order: list[RankCall], again: list[RankCall]) -> None:
    state = GroupState(GROUP, 3)
    assert not any(state.add(one) for one in [*order, *again])
    assert not state.incomplete
    assert state.call_count == 0


@given(
    st.permutations(
        [rank_call(rank, seq, size=4 if (rank, seq) == (2, 1) else 3) for rank in range(3) for seq in (1, 2)]
    )
)
def test_a_disagreement_is_noticed_once_in_any_order(order: list[RankCall]) -> None:
    state = GroupState(GROUP, 3)
    assert sum(state.add(one) for one in order) == 1
    assert [instance.key[2] for instance in state.incomplete.values() if instance.disagrees] == [1]


@given(st.permutations([rank_call(rank, 1, size=size, record=size) for rank in range(3) for size in (5, 6)]))
def test_a_coalesced_batch_is_compared_member_by_member(order: list[RankCall]) -> None:
    """Until all of it is there it may look like a disagreement; then it must not."""
    state = GroupState(GROUP, 3)
    for one in order:
        state.add(one)
    assert state.disagreeing == 0
    assert not state.incomplete


def test_incomplete_collectives_are_forgotten_oldest_first_but_a_disagreement_stays() -> None:
    state = GroupState(GROUP, 3)
    state.add(rank_call(0, 0))
    assert state.add(rank_call(1, 0, size=9))
    for seq in range(1, groups.MAX_INCOMPLETE + 100):
        state.add(rank_call(0, seq))
    assert len(state.incomplete) == groups.MAX_INCOMPLETE
    assert ("g", "collective", 0) in state.incomplete
    assert ("g", "collective", 1) not in state.incomplete
    assert state.call_count == groups.MAX_INCOMPLETE + 1


def test_calls_over_all_runs_are_bounded() -> None:
    runs = Runs(max_weight=1_000)
    for job in range(4):
        run = run_in(runs, f"run-{job}", job=f"job-{job}")
        add_spans(run, 0, [call(seq) for seq in range(600)], 0.0)
    runs.trim()
    kept = sum(run.call_count for run in runs.by_id.values())
    assert 200 <= kept <= 1_000
    assert runs.evicted() == {"runs": 0, "instances": 2_400 - kept, "calls": 2_400 - kept}


def test_before_a_ranks_first_call_there_is_no_gap() -> None:
    run = run_in(Runs(), "run")
    late = (*call(1)[:4], 10**18 + 5 * 10**9, 10**18 + 6 * 10**9, None)
    add_spans(run, 0, [call(0), late], 0.0)
    first, second = (run.groups["g"].incomplete["g", "collective", seq].by_rank()[0][0] for seq in range(2))
    assert first.gap is None
    assert second.gap == pytest.approx(5.0, abs=0.01)


def test_the_run_that_has_been_silent_longest_is_evicted_first() -> None:
    runs = Runs(max_runs=2)
    first, second, third = (RunId("job", attempt, str(attempt)) for attempt in range(3))
    for run_id in (first, second, first, third):
        runs.get(run_id, 0.0)
    assert set(runs.by_id) == {first, third}


def test_invented_job_names_evict_no_job() -> None:
    runs = Runs(max_runs=4)
    jobs = [RunId("job", attempt, str(attempt)) for attempt in range(3)]
    for second in range(20):
        for job in jobs:
            run = runs.get(job, float(second))
            assert run is not None
            run.last_seen = float(second)
        for number in range(50 if second > 1 else 0):
            runs.get(RunId(f"invented-{second}-{number}", 0, ""), float(second))
    assert set(jobs) <= set(runs.by_id)
    assert runs.evicted()["runs"] == 18 * 50 - 1


def show(change: ChangeKind = ChangeKind.OPENED, color: bool = False, **more: object) -> str:
    return present.render(change, incident_data(**more), now=10.0, started=7.5, color=color)


def test_the_text_of_an_incident() -> None:
    assert show(waiting_ranks=[0, 2, 3], what_to_do="End it.", flight_recorder_files={"1": "/d/rank_1"}) == (
        "INCIDENT missing_rank: rank 1 in job job-7 attempt 1 [abc]\n"
        "  rank 1 did not join\n"
        "  what to do       End it.\n"
        "  process group    default_pg (0), ranks 0, 1\n"
        "  collective       all_reduce number 5\n"
        "  culprits         rank 1: a.py:1 f\n"
        "  waiting          ranks 0, 2, 3: location not known\n"
        "  files            rank 1: /d/rank_1\n"
        "  trace            ff\n"
        "  started          2.5 s ago\n"
    )


def test_the_values_of_a_mismatch_are_shown_by_value_the_odd_ranks_first() -> None:
    values = {str(rank): "[[8]]" for rank in range(64) if rank != 40} | {"40": "[[4]]"}
    assert "  input_sizes      rank 40: [[4]]\n                   ranks 0-39, 41-63: [[8]]\n" in show(
        field="input_sizes", values=values
    )


def test_a_thousand_ranks_stay_readable() -> None:
    ranks = list(range(1, 1000))
    sites = {str(rank): f"a.py:{rank} f" for rank in range(1000)}
    text = show(culprit_ranks=ranks, waiting_ranks=ranks, call_sites=sites, stacks=dict.fromkeys(sites, "Stack:\n"))
    assert len(text.splitlines()) < 60
    assert "and 991 more" in text


def test_a_deep_stack_shows_its_innermost_frames() -> None:
    frames = [f'  File "a.py", line {n} in f{n}\n    code()' for n in range(40)]
    fault = present.trim_stack("\n".join(["Thread 0x1 (most recent call first):", *frames]))
    trace = present.trim_stack("\n".join(["Stack (most recent call last):", *frames]))
    assert "f0" in fault[1]
    assert "28 more frames" in fault[-1]
    assert "f39" in trace[-2]
    assert "28 more frames" in trace[1]


def test_colours_are_for_terminals() -> None:
    assert "\x1b[" not in show()
    assert show(color=True).startswith("\x1b[31m")
    assert "RESOLVED missing_rank" in show(ChangeKind.RESOLVED)
    assert show(caused_by="xyz").startswith("  consequence of xyz: ")


@pytest.mark.parametrize(("piece", "found"), [(4, False), (5, True)])
def test_pieces_that_come_before_the_members_are_known_are_judged_once_they_are(piece: int, found: bool) -> None:
    """The spans of a short job may outrun the first report, which alone names the members in order."""

    def scatter(rank: int) -> RankCall:
        given, own = ((4,),) * 3 if rank == 0 else (), ((piece,),) if rank == 2 else ((4,),)
        types = ("Float",) * len(given)
        signature = INTERNER.signature(Signature("scatter", given, own, types, ("Float",), root=0))
        return RankCall(rank, 1, "g", "collective", 1, signature, CallState.COMPLETED, enqueued_wall=1.0)

    state = GroupState(Group("g", "0", "default_pg", ()), 3)
    assert not any(state.add(scatter(rank)) for rank in range(3))
    assert not state.compare_pieces()
    state.learn(GROUP, 3)
    assert state.compare_pieces() is found
    assert bool(state.incomplete) is found
    assert not state.compare_pieces()


def test_a_group_of_the_whole_world_needs_no_report_to_know_its_members() -> None:
    run = run_in(Runs())
    run.world_size = 3
    for rank in range(2):
        add_spans(run, rank, [call(1), call(1, Group("h", "1", "pair", ()), 2)], 1.0)
    assert run.groups["g"].group.ranks == (0, 1, 2)
    assert run.groups["h"].group.ranks == ()


def test_what_is_restored_late_replaces_nothing_that_has_been_reported_since() -> None:
    """The run was saved before its ranks were heard, and the store can be read again only now."""
    run = new_run()
    run.note_origin(0, place=Place("h"), world_size=3, resource={"service.name": "train"}, now=0.0)
    run.restore(None, {}, [])
    assert (run.world_size, run.resource) == (3, {"service.name": "train"})
