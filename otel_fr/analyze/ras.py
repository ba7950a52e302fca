"""What NCCL's RAS says of the communicators of a run, as sentences. They are shown, and no verdict rests on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from otel_fr.analyze.assemble.runs import Run
from otel_fr.dumps import files, nccl_ras
from otel_fr.dumps.model import Problem
from otel_fr.dumps.nccl_ras import RasAnswer, RasCommunicator
from otel_fr.match import Group
from otel_fr.presentation import count_text, group_text, ranks_text, verb

MAX_FILES = 64
"""Answers that are read: one of the first machine is enough."""
_ERRORS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
}
"""By the numbers of ``ncclResult_t`` (nccl.h)."""


def read_answers(path: Path) -> tuple[list[RasAnswer], list[Problem]]:
    """The answers in a folder and the folders in it, and files that hold none, or not a whole one."""
    read: list[RasAnswer] = []
    problems: list[Problem] = []
    for file in [file for file in files.find(path, None)[0] if nccl_ras.is_one(file)][:MAX_FILES]:
        try:
            read.append(nccl_ras.read_answer(file))
        except (OSError, ValueError) as error:
            problems.append(Problem(str(file), getattr(error, "strerror", None) or str(error)))
    return read, problems


def ras_lines(run: Run | None, answers: Sequence[RasAnswer]) -> list[str]:
    """Of each answer where it comes from, and a sentence for each thing that is odd in a communicator."""
    return [line for answer in answers for line in _of_answer(run, answer)]


def _of_answer(run: Run | None, answer: RasAnswer) -> Iterator[str]:
    known = {} if run is None else {rank.rank: rank.place.pid for rank in run.evidence.ranks.values()}
    pids = {pid for pid in known.values() if pid is not None}
    if pids and answer.pids and not pids & answer.pids:
        yield f"{answer.path} is of processes that are not of this run"
        return
    asked = f", {answer.time}" if answer.time else ""
    yield f"{answer.path}: NCCL {answer.version}{asked}"
    odd = [line for one in answer.communicators for line in _of_communicator(run, one)]
    yield from odd
    if not odd:
        count = count_text(len(answer.communicators), "communicator")
        yield f"{count}: all ranks answered, and have started equally many calls"
    if answer.timeouts:
        yield f"some processes did not answer in time ({count_text(answer.timeouts, 'timeout')})"


def _of_communicator(run: Run | None, one: RasCommunicator) -> Iterator[str]:
    group = None if run is None else _owner(run, one)
    where = f"communicator {one.id} of {count_text(one.size, 'rank')}"
    if group is not None:
        where = f"group {group_text(group.name, group.description)}"

    def named(ranks: Iterable[int]) -> str:
        return ranks_text(ranks if group is None else (group.ranks[rank] for rank in ranks))

    silent = [rank.rank for rank in one.ranks if rank.is_missing and not rank.is_dead]
    dead = [rank.rank for rank in one.ranks if rank.is_dead]
    if silent:
        yield f"{where}: {named(silent)} did not answer"
    if dead:
        yield f"{where}: {named(dead)} did not answer, and NCCL considers {verb(dead, 'it', 'them')} dead"
    errors: dict[int, list[int]] = defaultdict(list)
    for rank in one.ranks:
        if rank.error:
            errors[rank.error].append(rank.rank)
    for error, ranks in sorted(errors.items()):
        yield f"{where}: {named(ranks)} with NCCL's error {error} ({_ERRORS.get(error, 'unknown')})"
    aborted = [rank.rank for rank in one.ranks if rank.is_aborted]
    if aborted:
        yield f"{where}: aborted on {named(aborted)}"
    for operation in sorted({operation for rank in one.ranks for operation in rank.counts}):
        by_count: dict[int, list[int]] = defaultdict(list)
        for rank in one.ranks:
            if operation in rank.counts:
                by_count[rank.counts[operation]].append(rank.rank)
        if len(by_count) > 1:
            counts = ", ".join(f"{count} on {named(ranks)}" for count, ranks in sorted(by_count.items())[:8])
            yield f"{where}: calls of {operation} started: {counts}"


def _owner(run: Run, one: RasCommunicator) -> Group | None:
    """The only group of as many ranks, whose processes are those of the communicator, rank by rank."""
    pid_of = {rank.rank: rank.place.pid for rank in run.evidence.ranks.values()}
    parts = [rank for rank in one.ranks if rank.pid and rank.rank < one.size]
    fitting = []
    for group in run.evidence.groups.values():
        if len(group.ranks) != one.size:
            continue
        pairs = [(pid_of.get(group.ranks[rank.rank]), rank.pid) for rank in parts]
        known = [theirs == ours for ours, theirs in pairs if ours is not None]
        if known and all(known):
            fitting.append(group)
    return fitting[0] if len(fitting) == 1 else None
