"""The work for files with many open calls, or many groups, grows with their number, not with its square."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_fr.analyze import UNDECIDED, Analysis, load
from tests.support.torch_files import entry, group, write

CALLS_PER_CALL = 900
"""Function calls for each call in the files, at most. About 450 are made; pairs of calls, or of groups, would be
thousands for each."""

COUNT = 2_000


def judged(folder: Path) -> tuple[Analysis, int]:
    """The analysis, and how many function calls it made (which a busy machine does not change)."""
    profile = cProfile.Profile()
    report = profile.runcall(load, folder)
    _ = report.status
    return report, sum(item.callcount for item in profile.getstats())


def of_one_group(folder: Path) -> Path:
    calls = [entry(number, "all_reduce", number + 1, state="scheduled") for number in range(COUNT)]
    calls[0] = entry(0, "all_reduce", 1)
    return write(folder, {0: calls, 1: calls})


def of_many_groups(folder: Path) -> Path:
    names = [str(number) for number in range(COUNT)]
    done = entry(0, "all_reduce", 1, process_group=("0", "tp"))
    calls = [done] + [
        entry(number, "all_reduce", 1, state="scheduled", process_group=(name, "tp"), pg_id=number)
        for number, name in enumerate(names)
        if number
    ]
    return write(folder, {0: calls, 1: calls}, **{name: group(name, "tp", (0, 1)) for name in names})


@pytest.mark.parametrize("make", [of_one_group, of_many_groups])
def test_the_work_is_proportional_to_the_open_calls(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    report, work = judged(make(tmp_path))
    assert report.status == UNDECIDED
    assert work < CALLS_PER_CALL * 2 * COUNT


def _of_one_rank(folder: Path, peers: Callable[[int], int]) -> Path:
    names = [str(number) for number in range(COUNT)]
    calls = [
        entry(number, "all_reduce", 1, state="scheduled", process_group=(name, "tp"), pg_id=number)
        for number, name in enumerate(names)
    ]
    return write(folder, {0: calls}, **{name: group(name, "tp", (0, peers(int(name)))) for name in names})


@pytest.mark.parametrize("peers", [lambda _: 1, lambda number: number + 1], ids=["one", "each another"])
def test_so_it_is_if_the_other_members_left_no_file(tmp_path: Path, peers: Callable[[int], int]) -> None:
    """One file of 2,000 groups took 55 s and 665 MB."""
    report, work = judged(_of_one_rank(tmp_path, peers))
    assert report.incidents
    assert work < CALLS_PER_CALL * 2 * COUNT
