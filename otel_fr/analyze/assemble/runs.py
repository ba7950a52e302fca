"""The runs in a folder of files, each with the match engine's `Evidence`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from otel_fr import identity
from otel_fr.analyze.assemble.ages import since, young_calls
from otel_fr.analyze.assemble.clocks import clock_offsets, valid
from otel_fr.analyze.assemble.file_sets import replaced, split
from otel_fr.analyze.assemble.message_numbers import number_messages
from otel_fr.analyze.assemble.message_patterns import note_patterns
from otel_fr.analyze.assemble.messages import Messages
from otel_fr.analyze.assemble.only_open import complete_open_only
from otel_fr.analyze.assemble.ranks import destroys, note_ends, number, rank_of
from otel_fr.analyze.assemble.run_columns import RunColumns, showing_begins
from otel_fr.analyze.assemble.unseen_ends import complete_joined
from otel_fr.analyze.notes import Note, NoteKind
from otel_fr.config import DEFAULT_STALL_SECONDS, STALL_SHARE
from otel_fr.dumps.columns import P2P, Mask
from otel_fr.dumps.model import Dump, Problem
from otel_fr.match.facts.ranks import not_yet_here
from otel_fr.match.facts.recording import DEFAULT_GROUP
from otel_fr.match.model import Call, CallState, Ending, Evidence, Group, Progress, Rank
from otel_fr.presentation import ranks_by_text, ranks_text, verb
from otel_fr.stacks import own_thread
from otel_fr.torch_recorder import ends_are_seen


@dataclass(slots=True, kw_only=True, repr=False)
class Run:
    """One run of one job, with the files of its ranks.

    Attributes:
        run_id: `identity.run_id`. "" for files of other recorders, which do not have it.
        ids: rank -> `Entry.group` in its file -> `Group.id`.
        messages: the sends and receives of each of ``dumps``.
        written_at: when the newest file was written, in Unix seconds. None: not known.
        notes: what the files do not show.
    """

    job: str
    attempt: int
    run_id: str
    dumps: list[Dump]
    evidence: Evidence
    ids: dict[int, dict[str, str]]
    messages: list[Messages]
    written_at: float | None = None
    notes: list[Note] = field(default_factory=list)

    @property
    def session(self) -> int:
        """How many earlier runs the processes took part in. If they differ, the highest number."""
        return max((dump.integer("session") or 0 for dump in self.dumps), default=0)

    @property
    def has_completions(self) -> bool:
        """Whether some files record which calls completed."""
        return any(dump.has_completions for dump in self.dumps)

    def clock_offsets(self) -> dict[int, int]:
        """`clocks.clock_offsets` of the run's files."""
        return clock_offsets(self.dumps, self.ids, self.evidence.groups)

    def __repr__(self) -> str:
        """Name the run without its calls, which would fill a thousand screens."""
        ranks = ranks_text(dump.rank for dump in self.dumps)
        return f"<Run of job {self.job!r}, attempt {self.attempt}: {len(self.dumps)} files of {ranks}>"


def build_runs(dumps: Sequence[Dump]) -> tuple[list[Run], list[Problem]]:
    """Make one `Run` for each run in the files, newest first: the runs of the job with the newest file come first.

    Of one job's runs, the one that began last is the newest. It need not have the newest file: a rank that has not
    reached the next run of its processes still writes to the earlier one. Nor the most attempts: an earlier launch of
    the job may have had more.

    Files of PyTorch and torchcomms do not name their run. `file_sets.split` assigns them, and their runs come last. If
    a rank has several files in one run, the newest is used, and a problem is returned for each of the others.
    """
    by_run: dict[tuple[str, int, str], list[Dump]] = {}
    problems: list[Problem] = []
    runs: list[Run] = []
    for dump in dumps:
        if dump.source == "otel-fr":
            job, attempt = dump.text("job_id"), dump.integer("attempt") or 0
            key = job, attempt, dump.text("run_id") or f"{job}/{attempt}"
            by_run.setdefault(key, []).append(dump)
    for (job, attempt, run_id), members in by_run.items():
        chosen, left = _one_per_rank(members)
        problems.extend(left)
        runs.append(_run(job, attempt, run_id, chosen))
    written: dict[str, float] = {}
    for run in runs:
        written[run.job] = max(written.get(run.job, 0.0), run.written_at or 0.0)
    runs.sort(key=lambda run: (written[run.job], run.job, _begun_at(run), run.attempt, run.session), reverse=True)
    for run, before in itertools.pairwise(runs):
        if (run.job, run.attempt) == (before.job, before.attempt) and run.session > before.session:
            _add_not_yet_here(run, before)
    found, left = split([dump for dump in dumps if dump.source != "otel-fr"])
    problems.extend(left)
    runs.extend(_run("", 0, "", members) for members in found)
    return runs, problems


def _begun_at(run: Run) -> float:
    """When the first call in the files was enqueued, in Unix seconds. If they have no call: when they were written."""
    created = [(dump.entries.created, len(dump.entries)) for dump in run.dumps]
    known = [times[valid(times, count)] for times, count in created if times is not None]
    return min((int(times.min()) / 1e9 for times in known if len(times)), default=run.written_at or 0.0)


def _add_not_yet_here(run: Run, before: Run) -> None:
    """Add ranks that have a file in the run before but not in this one: their processes have not come to it yet."""
    evidence = run.evidence
    ranks = dict(evidence.ranks)
    here = {dump.rank: ranks[dump.rank] for dump in run.dumps}
    found = not_yet_here(here, evidence.world_size, before.evidence.ranks)
    run.evidence = replace(evidence, ranks={**ranks, **found})
    run.notes = [one for one in run.notes if one.kind is not NoteKind.NO_FILE]
    run.notes += _no_file(ranks.keys() - here.keys() - found.keys())


def _one_per_rank(dumps: Iterable[Dump]) -> tuple[list[Dump], list[Problem]]:
    chosen: dict[int, Dump] = {}
    left: list[Problem] = []
    for dump in dumps:
        other = chosen.get(dump.rank)
        if other is None:
            chosen[dump.rank] = dump
            continue
        better, worse = (dump, other) if _worth(dump) > _worth(other) else (other, dump)
        chosen[dump.rank] = better
        left.append(replaced(worse, better))
    return [chosen[rank] for rank in sorted(chosen)], left


def _worth(dump: Dump) -> tuple[int, int, int]:
    entries = dump.entries
    sites = np.array([bool(call_site.site) for call_site in entries.call_sites] or [False])
    return dump.integer("written_at") or 0, int(entries.record.max(initial=-1)), int(sites[entries.call_site].sum())


def _run(job: str, attempt: int, run_id: str, dumps: list[Dump]) -> Run:
    groups, ids = _groups(dumps)
    only_open = {dump.rank for dump in complete_open_only(dumps)}
    notes = _noted(NoteKind.ODD_FILE, ((dump.rank, note) for dump in dumps for note in dump.notes))
    partial = "the file does not contain every call: older calls were overwritten, or completed calls were left out"
    rest = "the file holds only calls that had not completed"
    texts = ((dump.rank, rest if dump.rank in only_open else partial) for dump in dumps if dump.partial)
    notes += _noted(NoteKind.PARTIAL_FILE, texts)
    messages, unmatched = number_messages(dumps)
    notes += [Note(NoteKind.MESSAGES, text) for text in unmatched]
    has_completions = any(dump.has_completions for dump in dumps)
    if not has_completions:
        notes.append(Note(NoteKind.NO_COMPLETIONS, "the recorder does not record which calls completed"))
    stall = max((number(dump.facts.get("stall_seconds")) or 0.0 for dump in dumps), default=0.0)
    window = STALL_SHARE * (stall or DEFAULT_STALL_SECONDS)  # a monitor writes its file this long after a stall begins
    calls: list[Call] = []
    ranks: dict[int, Rank] = {}
    columns = RunColumns(dumps, ids, groups)
    showing = showing_begins(dumps)
    for dump, of_rank, decided in zip(dumps, messages, columns.decided(), strict=True):
        ranks[dump.rank] = rank_of(dump, own := ids[dump.rank])
        if dump.partial and not any(info.ranks for info in dump.groups.values()):
            # The file's groups are known only from its calls, and some were overwritten: the rank may have used others.
            unseen = [id_ for id_, group in groups.items() if dump.rank in group.ranks]
            ranks[dump.rank].progress = {**{id_: Progress() for id_ in unseen}, **ranks[dump.rank].progress}
        calls.extend(_calls(dump, of_rank, own, decided, has_completions, showing, young_calls(dump, window)))
    note_ends(dumps, ids, groups, ranks)
    reported_size = max((dump.integer("world_size") or 0 for dump in dumps), default=0)
    world_size = reported_size if 0 < reported_size <= identity.MAX_RANKS else None
    absent = {rank for group in groups.values() for rank in group.ranks}.union(range(world_size or 0)) - set(ranks)
    for rank in absent:
        ranks[rank] = Rank(rank, ending=Ending.UNKNOWN, complete=False)
    notes += _no_file(absent)
    notes += _noted(NoteKind.OUTDATED_FILE, _drop_outdated(dumps, ranks, columns.last_completed()))
    note_patterns(dumps, messages, ids, ranks)
    written = max((dump.integer("written_at") or 0 for dump in dumps), default=0)
    return Run(
        job=job,
        attempt=attempt,
        run_id=run_id,
        dumps=dumps,
        evidence=Evidence(
            groups=groups,
            calls=complete_joined(calls, groups),
            ranks=ranks,
            window=window,
            world_size=world_size,
        ),
        ids=ids,
        messages=messages,
        written_at=written / 1e9 if written else None,
        notes=notes,
    )


# Process groups.


def _groups(dumps: Sequence[Dump]) -> tuple[dict[str, Group], dict[int, dict[str, str]]]:
    """The groups by id, and for each rank: group key in its file -> group id."""
    seen: dict[str, set[int]] = {}
    for dump in dumps:
        for key, info in dump.groups.items():
            if not info.ranks:
                # Its members are not listed: all ranks for the default group, else those that recorded its calls.
                everybody = {other.rank for other in dumps} if info.description == DEFAULT_GROUP else {dump.rank}
                seen.setdefault(key, set()).update(everybody)
    groups: dict[str, Group] = {}
    ids: dict[int, dict[str, str]] = {}
    for dump in dumps:
        of_rank = ids[dump.rank] = {}
        for key, info in dump.groups.items():
            members = info.ranks or tuple(sorted(seen[key]))
            id_ = info.id or identity.group_id(info.name, members)
            of_rank[key] = id_
            known = groups.get(id_)
            if known is None or not known.ranks:
                groups[id_] = Group(id_, info.name, info.description, members)
    return groups, ids


# Calls.


def _calls(
    dump: Dump,
    messages: Messages,
    ids: Mapping[str, str],
    decided: Mask,
    has_completions: bool,
    showing: Container[str],
    young: Mapping[int, float],
) -> list[Call]:
    """The calls that the match engine must see: those that are not decided, and the newest one.

    Args:
        showing: the result of `showing_begins`.
        young: the result of `young_calls`.
    """
    entries, pairs = dump.entries, messages.entries
    newest = int(entries.record[~destroys(dump)].max(initial=-1))  # the engine sets destroying calls aside
    is_over = bool(decided[entries.record == newest].any() or messages.decided[pairs.record == newest].any())
    wanted = np.flatnonzero((entries.stream != P2P) & (~decided | (entries.record == newest)))
    found: list[Call] = []
    for entry in [*entries.at(wanted), *pairs.at(np.flatnonzero(~messages.decided | (pairs.record == newest)))]:
        group = ids.get(entry.group)
        if group is None:
            continue
        state = entry.seen_state(has_completions)
        if is_over and entry.record == newest and state is CallState.UNKNOWN:  # the peers' calls are left out
            state = CallState.COMPLETED
        queued: bool | None = entry.started_ns is None and entry.stream == "collective"
        on_device = state is CallState.IN_FLIGHT and ends_are_seen(entry.backend)
        # In otel-fr's files, a call in flight that its device has not begun has the age 0.
        is_told = entry.age == 0.0 if on_device and dump.source == "otel-fr" else entry.backend in showing
        if queued and not is_told:
            queued = None if on_device else False
        found.append(
            Call(
                rank=dump.rank,
                group=group,
                stream=entry.stream,
                sequence_id=entry.sequence_id,
                record=entry.record,
                signature=entry.signature,
                state=state,
                pair_index=entry.pair_index or 0,
                age=since(dump, entry) if queued else young.get(entry.record) if entry.age is None else entry.age,
                duration=entry.duration,
                gap=entry.gap,
                timeout=entry.timeout,
                error=entry.error,
                site=entry.site,
                batch=entry.batch,
                queued=queued,
                thread=own_thread(entry.thread) if dump.source == "otel-fr" else "",
            )
        )
    return found


# Files and notes.


def _drop_outdated(
    dumps: Sequence[Dump], ranks: Mapping[int, Rank], last_completed: Mapping[str, tuple[int, int]]
) -> list[tuple[int, str]]:
    """Forget the progress of files that other files contradict: they are older, and do not show how the run ended.

    If one rank completed a collective that needs every rank, every member has enqueued it, even if its (older) file
    does not contain it.

    Returns:
        The rank of each such file, and a sentence about it.
    """
    outdated: list[tuple[int, str]] = []
    for dump in dumps:
        rank = ranks[dump.rank]
        for group, progress in rank.progress.items():
            sequence_id, other = last_completed.get(group, (0, 0))
            if progress.enqueued is not None and progress.enqueued < sequence_id and rank.ending is Ending.RUNNING:
                progress.enqueued = progress.completed = progress.messages = None
                rank.complete, rank.ending = False, Ending.UNKNOWN
                text = f"its file is older than rank {other}'s, which completed a later collective"
                outdated.append((dump.rank, text))
                break
    return outdated


def _no_file(absent: Collection[int]) -> list[Note]:
    text = f"no file for {ranks_text(absent)}: {verb(absent, 'its', 'their')} progress is not known"
    return [Note(NoteKind.NO_FILE, text)] if absent else []


def _noted(kind: NoteKind, texts: Iterable[tuple[int, str]]) -> list[Note]:
    """Make one note for all ranks with the same text."""
    return [Note(kind, f"{ranks_text(ranks)}: {text}") for text, ranks in ranks_by_text(texts).items()]
