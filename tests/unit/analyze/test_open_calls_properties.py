"""NCCL's files that hold only calls in flight, of hybrid-parallel jobs that hang: no rank is named wrongly."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_fr.analyze import UNDECIDED, load
from otel_fr.analyze.notes import NoteKind
from otel_fr.match import Finding
from tests.support.device_model import Machine, hybrid_groups, hybrid_programs
from tests.support.nccl_files import write_files
from tests.support.verdicts import causes

seeds = st.integers(0, 2**32)


def hung_job(rng: random.Random, *, device: bool) -> tuple[Machine, set[int]]:
    """A job in which one or two ranks' devices or hosts stop, run until nothing moves; and those ranks."""
    groups = hybrid_groups(rng.choice([2, 4]), rng.choice([1, 2]), rng.choice([1, 2, 4]))
    programs = hybrid_programs(rng, groups, 3)
    ranks = set(rng.sample(sorted(programs), rng.randint(1, 2)))
    stuck, silent = {}, {}
    for rank in ranks:
        at = rng.randrange(len(programs[rank]) // 2, len(programs[rank]))
        if device:
            stuck[rank], silent[rank] = at, at + rng.randint(0, 12)
        else:
            programs[rank] = programs[rank][:at]
    machine = Machine(programs, rng.randint(2, 24), stuck=stuck, silent=silent)
    machine.run(rng)
    return machine, ranks


def accused(
    rng: random.Random, machine: Machine, ranks: set[int], *, absent: bool, status: bool = True
) -> list[Finding]:
    """The causes that files of only open calls show; of other ranks than ``ranks`` some files may be absent.

    Without those that name absent ranks in a collective in which all ranks with a file wait: that is what files show.
    If no cause is found although calls are in flight, one of ``ranks`` must be among the suspects; unless no call of
    the files shows that their recorder records completions at all.
    """
    others = sorted(set(machine.programs) - ranks)
    without = set(rng.sample(others, rng.randint(1, max(1, len(others) // 2)))) if absent and others else set()
    with tempfile.TemporaryDirectory() as folder:
        report = load(write_files(Path(folder), machine, absent=without, status=status))
    found = causes(report.findings)
    if any(note.kind is NoteKind.NO_COMPLETIONS for note in report.notes):
        return found
    if not found and any(not call.completed for r in machine.issued if r not in without for call in machine.issued[r]):
        assert report.status == UNDECIDED
        assert report.open_calls is not None
        assert ranks.intersection(rank for suspects in report.open_calls.suspects for rank in suspects.ranks)
    return [finding for finding in found if _members(finding) - without - set(finding.waiting_ranks)]


def _members(finding: Finding) -> set[int]:
    assert finding.group is not None
    return set(finding.p2p[:2] if finding.p2p else finding.group.ranks)


@given(seeds, st.booleans())
@settings(derandomize=True)
def test_without_the_last_numbers_of_groups_no_rank_is_named_wrongly(seed: int, device: bool) -> None:
    rng = random.Random(seed)
    machine, ranks = hung_job(rng, device=device)
    for finding in accused(rng, machine, ranks, absent=False, status=False):
        assert ranks.issuperset(finding.culprit_ranks), finding.summary


@given(seeds, st.booleans())
@settings(derandomize=True)
def test_only_ranks_whose_devices_stopped_are_named(seed: int, absent: bool) -> None:
    rng = random.Random(seed)
    machine, ranks = hung_job(rng, device=True)
    for finding in accused(rng, machine, ranks, absent=absent):
        assert ranks.issuperset(finding.culprit_ranks), finding.summary
        assert finding.stuck_on == "device" or not finding.culprit_ranks, finding.summary


@given(seeds, st.booleans())
@settings(derandomize=True)
def test_only_ranks_whose_hosts_stopped_are_named(seed: int, absent: bool) -> None:
    rng = random.Random(seed)
    machine, ranks = hung_job(rng, device=False)
    found = accused(rng, machine, ranks, absent=absent)
    for finding in found:
        assert ranks.issuperset(finding.culprit_ranks), finding.summary
        assert finding.stuck_on == "host", finding.summary
    waited_for = any(not call.completed for calls in machine.issued.values() for call in calls)
    if waited_for and not absent:
        assert found, "a rank waits for one of them"
