"""The counts of all ranks as columns say what the ranks' own say, whatever way these came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run

from tests.support.told import new_run, rank_in

Steps = list[tuple[int, str, int, int]]
STEPS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 9)))


def counts(run: Run) -> dict[str, dict[int, tuple[int, int]]]:
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for rank, state in run.ranks.items():
        for group, own in state.progress.items():
            found.setdefault(group, {})[rank] = own[0], own[1]
    return found


@given(st.lists(STEPS, max_size=2), STEPS)
def test_they_are_those_of_the_ranks(restored: list[Steps], steps: Steps) -> None:
    run = new_run()
    for before in restored:
        known: dict[int, RankState] = {}
        for rank, group, enqueued, completed in before:
            known.setdefault(rank, RankState(rank)).progress[group] = [enqueued, completed, 0, 0, -1]
        run.restore(None, {}, known.values())
    for number, (rank, group, enqueued, completed) in enumerate(steps):
        state = rank_in(run, rank)
        run.note_progress(state, group, enqueued, completed)
        if number % 3 == 0:
            run.levels.by_group()  # as of now; more comes later
    wanted, seen = counts(run), run.levels.by_group()
    spans = {group: [min(own.values()), max(own.values())] for group, own in wanted.items()}
    assert seen.spans() == {group: (low[0], high[0]) for group, (low, high) in spans.items()}
    assert seen.lag() == max((high[0] - low[0] for low, high in spans.values()), default=0)
    assert run.progress_entries == run.usage.progress_entries == sum(map(len, wanted.values()))
    for group in "abcd":
        found = {rank: (one, two) for rank, one, two in zip(*(part.tolist() for part in seen.of(group)), strict=True)}
        assert found == wanted.get(group, {})
