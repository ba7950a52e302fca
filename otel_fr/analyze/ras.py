"""What NCCL's RAS reports about the communicators of a run, as sentences. No verdict is based on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from otel_fr import ras_text
from otel_fr.analyze.assemble.runs import Run
from otel_fr.dumps import files, nccl_ras
from otel_fr.dumps.model import Problem
from otel_fr.dumps.nccl_ras import RasAnswer

MAX_FILES = 64
"""Most answers that are read, the newest. One answer of a run is enough, but a folder may have files of many runs."""


def read_answers(path: Path) -> tuple[list[RasAnswer], list[Problem]]:
    """Read the answers in a folder and its subfolders. Also return files without a complete answer."""
    found = [file for file in files.find(path, None)[0] if nccl_ras.is_one(file)]
    newest = set(sorted(found, key=files.modified_ns)[-MAX_FILES:])
    return files.read_each([file for file in found if file in newest], nccl_ras.read_answer)


def ras_lines(run: Run | None, answers: Sequence[RasAnswer]) -> list[str]:
    """For each answer: where it comes from, and a sentence about each oddity of a communicator."""
    return [line for answer in answers for line in _of_answer(run, answer)]


def _of_answer(run: Run | None, answer: RasAnswer) -> Iterator[str]:
    known = {} if run is None else {rank.rank: rank.place.pid for rank in run.evidence.ranks.values()}
    pids = {pid for pid in known.values() if pid is not None}
    if pids and answer.pids and not pids & answer.pids:
        yield f"{answer.path} is of processes that are not of this run"
        return
    asked = f", {answer.time}" if answer.time else ""
    yield f"{answer.path}: NCCL {answer.version}{asked}"
    groups = [] if run is None else list(run.evidence.groups.values())
    odd = [one for one in map(nccl_ras.odd_of, answer.communicators) if one.facts]
    for one in odd:
        yield from ras_text.sentences(one, ras_text.group_of(one, groups, known))
    if not odd:
        yield ras_text.all_well(len(answer.communicators))
    if answer.timeouts:
        yield ras_text.timeouts_text(answer.timeouts)
