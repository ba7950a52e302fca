"""The result of an analysis, and how to make it: ``otel_fr.analyze.load(path)``."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from otel_fr import identity
from otel_fr.analyze.assemble.runs import Run, build_runs
from otel_fr.analyze.collectives import Collective, collectives_of
from otel_fr.analyze.device_durations import DeviceDurations, durations_of, read_files
from otel_fr.analyze.first_lines import first_lines, with_first_lines
from otel_fr.analyze.notes import Note, NoteKind
from otel_fr.analyze.open_calls import OpenCalls, long_open_calls
from otel_fr.analyze.performance import Performance, performance_of
from otel_fr.analyze.ras import ras_lines, read_answers
from otel_fr.dumps.model import Dump, Problem
from otel_fr.dumps.nccl_inspector import InspectorFile
from otel_fr.dumps.nccl_ras import RasAnswer
from otel_fr.dumps.read import load_folder
from otel_fr.dumps.write import RECOVERED
from otel_fr.incident import IncidentData, incident_data
from otel_fr.match import Finding, Group, Rank, diagnose, open_questions
from otel_fr.match.facts.recording import DEFAULT_GROUP

HEALTHY, FAULT, UNUSABLE, UNDECIDED = 0, 1, 2, 3
"""Exit statuses. `FAULT`: in the newest run or an older one. `UNUSABLE`: no file could be read. `UNDECIDED`: calls are
in flight and the files do not show whether they are blocked, or calls in the files could not be read, or only one of
several ranks has a file."""

MAX_OLDER = 4
"""Older runs that are judged if the newest shows no fault."""

A = TypeVar("A", bound="Analysis")

_log = logging.getLogger(__name__)


@dataclass(kw_only=True, repr=False)
class Analysis:
    """What the flight-recorder files of some folders show about the newest run in them.

    Attributes:
        path: the folders or files that were read.
        run: the newest run, with its ``dumps`` (one per file) and ``evidence``. None: no file could be read.
        others: other runs with files in the folders, newest first.
        findings: the faults, causes first (`otel_fr.match.Finding`).
        problems: files that could not be used, or only partly.
        inspector: files of NCCL Inspector.
        ras: answers of NCCL's RAS.
        made_at: when the analysis was made, in Unix seconds.
    """

    path: str
    run: Run | None
    others: list[Run]
    findings: list[Finding]
    problems: list[Problem]
    inspector: list[InspectorFile] = field(default_factory=list)
    ras: list[RasAnswer] = field(default_factory=list)
    made_at: float = field(default_factory=time.time)

    @property
    def status(self) -> int:
        """The exit status of ``otel-fr analyze``: `HEALTHY` (0), `FAULT` (1, even if only an older run has a fault),
        `UNUSABLE` (2) or `UNDECIDED` (3)."""
        if self.run is None:
            return UNUSABLE
        if self.findings or self.older_faults:
            return FAULT
        return HEALTHY if self.is_decided else UNDECIDED

    @property
    def by_key(self) -> dict[str, Finding]:
        """The findings by key. If several share a key, the first counts."""
        return {finding.key: finding for finding in reversed(self.findings)}

    @property
    def is_decided(self) -> bool:
        """Whether the files show if the run has a fault."""
        if self.findings:
            return True
        return self.open_calls is None and not self.unusable and not self.alone and not self.unread

    @property
    def alone(self) -> bool:
        """Whether only one of several ranks has a file, so that there is nothing to compare it with.

        False if the file says that the rank has recovered.
        """
        if self.run is None or len(self.run.dumps) != 1:
            return False
        return len(self.run.evidence.ranks) > 1 and self.run.dumps[0].text("reason") != RECOVERED

    @property
    def absent(self) -> list[int]:
        """Ranks of the run without a file that could be read."""
        return [rank.rank for rank in self.ranks.values() if not rank.file]

    @property
    def unread(self) -> list[int]:
        """The absent ranks if some files could not be used: those files may be theirs."""
        return self.absent if any(problem.is_unread for problem in self.problems) else []

    @property
    def unusable(self) -> dict[int, int]:
        """Rank -> number of entries in its file that could not be read. They may be calls in flight."""
        dumps = [] if self.run is None else self.run.dumps
        return {dump.rank: dump.unusable for dump in dumps if dump.unusable}

    @cached_property
    def open_calls(self) -> OpenCalls | None:
        """If no fault was found: calls that may have been in flight for long, and the ranks for which they may wait."""
        return None if self.run is None or self.findings else long_open_calls(self.run)

    @cached_property
    def older_faults(self) -> dict[int, Finding]:
        """If no fault was found: index in `others` -> first fault. Only the newest `MAX_OLDER` of them are judged."""
        if self.run is None or self.findings:
            return {}
        judged = {number: diagnose(other.evidence) for number, other in enumerate(self.others[:MAX_OLDER])}
        return {number: found[0] for number, found in judged.items() if found}

    @property
    def ranks(self) -> Mapping[int, Rank]:
        """Every rank of the run, even without a file: how it ended, and its progress in each group."""
        return {} if self.run is None else dict(sorted(self.run.evidence.ranks.items()))

    @property
    def groups(self) -> Mapping[str, Group]:
        """The process groups by id."""
        return {} if self.run is None else self.run.evidence.groups

    @property
    def notes(self) -> list[Note]:
        """What the files do not show."""
        return [] if self.run is None else self.run.notes

    @property
    def undecided(self) -> list[str]:
        """What the files do not show, as sentences."""
        return [note.text for note in self.notes]

    @cached_property
    def incidents(self) -> list[IncidentData]:
        """The findings as incidents, as in ``--format json``."""
        run = self.run
        return [] if run is None else [self._incident(run, finding) for finding in self.findings]

    @cached_property
    def older_incidents(self) -> list[IncidentData]:
        """`older_faults` as incidents."""
        return [self._incident(self.others[number], finding) for number, finding in self.older_faults.items()]

    def _incident(self, run: Run, finding: Finding) -> IncidentData:
        since = None if run.written_at is None or finding.age is None else run.written_at - finding.age
        return incident_data(
            finding,
            job=run.job,
            attempt=run.attempt,
            run_id=run.run_id,
            started_at=since,
            detected_at=self.made_at,
            state="firing",
            waiting_since=since if finding.is_waiting else None,
        )

    @cached_property
    def collectives(self) -> Sequence[Collective]:
        """Every collective and message in the files; computed on first use."""
        return [] if self.run is None else collectives_of(self.run)

    @cached_property
    def collective_by_name(self) -> dict[str, Collective]:
        """`collectives` by `Collective.name`; computed on first use."""
        return {collective.name: collective for collective in self.collectives}

    @cached_property
    def device_durations(self) -> DeviceDurations:
        """How long the devices executed calls, as NCCL Inspector's files show; computed on first use."""
        return durations_of(self.run, self.inspector) if self.inspector else DeviceDurations()

    @cached_property
    def performance(self) -> Performance:
        """What communication costs, and for which rank others wait; computed on first use."""
        try:
            return Performance() if self.run is None else performance_of(self.run)
        except Exception:  # noqa: BLE001  an error here must not cost the verdict
            _log.warning("could not measure the performance of this run", exc_info=True)
            return Performance()

    @property
    def ras_lines(self) -> list[str]:
        """What NCCL's RAS reports about the communicators, as sentences."""
        return ras_lines(self.run, self.ras)

    @classmethod
    def load(
        cls: type[A],
        path: Path | str | Sequence[Path | str],
        prefix: str | None = None,
        *,
        workers: int = 1,
        progress: Callable[[int, int], None] | None = None,
        replica_size: int | None = None,
        nccl_inspector: Path | str | None = None,
    ) -> A:
        """Read folders of flight-recorder files (or single files) and judge the newest run in them.

        This never raises because of a file's content: files that cannot be used are in `Analysis.problems`.

        Args:
            path: one path, or several of the same job.
            prefix: only files whose name begins with it.
            workers: processes that share the reading of large folders.
            progress: called with (files read, number of files).
            replica_size: number of ranks in a torchft replica. The default group numbers the ranks of each replica
                from 0. None: the files are not torchft's.
            nccl_inspector: folder with files of NCCL Inspector. None: look for them in ``path``.

        Raises:
            FileNotFoundError: ``path`` or ``nccl_inspector`` does not exist.
            PermissionError: this user may not read the folder, or may not see whether it exists.
        """
        paths = [path] if isinstance(path, (str, Path)) else list(path)
        devices = paths if nccl_inspector is None else [nccl_inspector]
        for given in [*paths, *devices]:
            _check_can_be_read(Path(given))
        read = [load_folder(one, prefix, workers=workers, progress=progress) for one in paths]
        dumps, problems = _one_of_each_file([dump for found, _ in read for dump in found])
        problems += [problem for _, found in read for problem in found]
        if replica_size is not None:
            for dump in dumps:
                _use_global_ranks(dump, replica_size)
        runs, more = build_runs(dumps)
        for run in runs:
            run.run_id = run.run_id or _computed_run_id(run)
        findings = [with_first_lines(runs[0], one) for one in diagnose(runs[0].evidence)] if runs else []
        if runs and not findings:
            runs[0].notes += [Note(NoteKind.OPEN_COLLECTIVE, text) for text in open_questions(runs[0].evidence)]
            runs[0].notes += [Note(NoteKind.ELSEWHERE, text) for text in first_lines(runs[0])]
        answers = [read_answers(Path(one)) for one in paths]
        inspected = [read_files(Path(one)) for one in devices]
        return cls(
            path=", ".join(map(str, paths)),
            run=runs[0] if runs else None,
            others=runs[1:],
            findings=findings,
            problems=problems + more + [one for _, unread in (*inspected, *answers) for one in unread],
            inspector=[one for found, _ in inspected for one in found],
            ras=[one for found, _ in answers for one in found],
        )


load = Analysis.load


def _check_can_be_read(path: Path) -> None:
    """Raise FileNotFoundError or PermissionError if a path does not exist or cannot be accessed. Opens no file."""
    try:
        with os.scandir(path):
            pass
    except PermissionError:
        raise PermissionError(f"{path}: permission denied") from None
    except OSError:  # no error if the path is a file
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path}: no such file or folder") from None


def _one_of_each_file(dumps: Sequence[Dump]) -> tuple[list[Dump], list[Problem]]:
    """Keep each file once, because folders may overlap. A link that is named like another rank's file is a problem."""
    chosen: dict[str, Dump] = {}
    problems: list[Problem] = []
    for dump in sorted(dumps, key=lambda one: os.path.islink(one.path)):
        kept = chosen.setdefault(os.path.realpath(dump.path), dump)
        if kept.rank != dump.rank:
            text = f"not used: it is a link to {kept.path}, the file of rank {kept.rank}"
            problems.append(Problem(dump.path, text, is_unread=True))
    return list(chosen.values()), problems


def _computed_run_id(run: Run) -> str:
    """Compute an id for a run whose files have none, so that runs do not share incidents or traces."""
    starts = [dump.entries[0].created_ns for dump in run.dumps if dump.entries]
    known = sorted(start for start in starts if start is not None)
    return identity.run_id("", 0, f"{known[0]}/{','.join(sorted(run.evidence.groups))}") if known else ""


def _use_global_ranks(dump: Dump, replica_size: int) -> None:
    """Make the default group's ranks global, like ``torchfrtrace --transform-ft``: they count within a replica."""
    first = dump.rank // replica_size * replica_size
    for group in dump.groups.values():
        if group.description == DEFAULT_GROUP:
            group.ranks = tuple(rank + first for rank in group.ranks)
            group.id = ""  # `build_runs` computes it from the members
