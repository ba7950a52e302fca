"""PyTorch's ProcessGroupWrapper: TORCH_DISTRIBUTED_DEBUG=DETAIL compares each call before it is made, and raises."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.localisation.answers import Answer, named
from benchmarks.localisation.running import TIMEOUT, Finished
from benchmarks.localisation.tools.readings import minority

_ABSENT = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")
_DIFFERS = re.compile(
    r"Rank (\d+) is running collective: (.+?), but Rank (\d+) is running collective: (.+?)\.(?:Collectives|\s|$)"
)


class Wrapper:
    """Its exceptions, as a user reads them: the missing ranks; else the ranks with another collective than most."""

    name = "ProcessGroupWrapper (DETAIL)"
    own_run_on: tuple[str, ...] = ("gloo", "nccl", "nccl2")

    def prepare(self, folder: Path, stack: ExitStack) -> dict[str, str]:
        # The wrapper's own barrier keeps the timeout with which the group was made.
        own = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "LOCALISATION_BEGIN": str(TIMEOUT)}
        return {**own, "LOCALISATION_FILES": "0", "OTEL_FR_ENABLED": "0"}

    def answer(self, job: Finished) -> Answer:
        return from_lines(job.lines)


def from_lines(lines: Iterable[tuple[float, str]]) -> Answer:
    """Return the answer from the job's output. PyTorch's messages number the ranks within their process group."""
    absent, runs = set[int](), dict[int, str]()
    at, said = None, ""
    for when, line in lines:
        if found := _ABSENT.search(line):
            absent.update(int(rank) for rank in re.findall(r"\d+", found[1]))
        elif found := _DIFFERS.search(line):
            runs.update({int(found[1]): found[2], int(found[3]): found[4]})
        else:
            continue
        at, said = at or when, said or line.strip()
    return named(absent or minority(runs), said[:300], at)
