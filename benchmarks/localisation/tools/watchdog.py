"""The output of PyTorch and torchrun, as a person on call reads it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.localisation.answers import Answer, named
from benchmarks.localisation.running import Finished
from benchmarks.localisation.tools.readings import minority
from benchmarks.localisation.tools.tool import OnFiles

_WATCHDOG = re.compile(
    r"Rank (\d+)\] .*?caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+), NumelIn=(\d+)"
)
_NCCL2 = re.compile(r"\[rank(\d+)\]:.*\[TC\].* Operation timed out after")
_GLOO = re.compile(r"\[rank(\d+)\]:.*(Timed out waiting|Connection closed by peer|Connection reset|Broken pipe)")
_RAISED = re.compile(r"\[rank(\d+)\]: (?!Traceback)(\w[\w.]*(?:Error|Exception|Interrupt)\b.*)")
_FIRST = re.compile(r"Root Cause \(first observed failure\):")
_RANK = re.compile(r"^\s+rank\s+: (\d+)", re.MULTILINE)
_COMMUNICATION = re.compile(
    r"Timed out|Connection|Broken pipe|DistBackendError|DistNetworkError|NCCL|SIGABRT|SIGTERM|Gloo", re.IGNORECASE
)


class Watchdog(OnFiles):
    """Names the rank that failed on its own; else the rank that did not time out; else the rank with another call."""

    name = "PyTorch's text"

    def answer(self, job: Finished) -> Answer:
        return from_lines(job.lines, job.program.world)


def from_lines(lines: Sequence[tuple[float, str]], world: int) -> Answer:
    """Return the answer from the job's output."""
    waited: dict[int, tuple[str, ...]] = {}
    raised: dict[int, str] = {}
    at = None
    for when, line in lines:
        if found := _WATCHDOG.search(line):
            waited.setdefault(int(found[1]), found.groups()[1:])
        elif found := _NCCL2.search(line):
            waited.setdefault(int(found[1]), ())
        elif found := _GLOO.search(line):
            waited.setdefault(int(found[1]), ())
            raised.setdefault(int(found[1]), found[2])
        elif found := _RAISED.search(line):
            raised.setdefault(int(found[1]), found[2])
        else:
            continue
        at = at or when
    output = "".join(line for _, line in lines)
    if (first := _failed_by_itself(output, raised)) is not None:
        return named([first], f"rank {first} failed first", lines[-1][0])
    if not waited:
        return Answer("silent")
    absent = set(range(world)) - set(waited)
    return named(absent or minority(waited), f"timed out: {waited}"[:300], at, otherwise="undecided")


def _failed_by_itself(output: str, raised: dict[int, str]) -> int | None:
    """Return the rank of torchrun's root cause, unless it failed in a call that waits for others."""
    found = _FIRST.search(output)
    rank = _RANK.search(output, found.end()) if found else None
    if found is None or rank is None:
        return None
    number = int(rank[1])
    why = raised.get(number, "") + output[found.end() : found.end() + 500]
    return None if _COMMUNICATION.search(why) else number
