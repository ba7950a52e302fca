"""What several output formats show: the verdict in one sentence, and each rank's progress in each group."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.notes import NoteKind
from otel_fr.analyze.output.beside import beside, slowest_text
from otel_fr.dumps.model import Dump
from otel_fr.match import CallState, Category, Ending, Finding, Group, Rank
from otel_fr.match.texts.ranks import ending_text
from otel_fr.presentation import (
    UNDESCRIBED,
    collective_text,
    count_text,
    duration_text,
    group_text,
    place_text,
    ranks_by_text,
    ranks_text,
    site_text,
    verb,
    with_wait,
)

MAX_COLUMNS = 8
"""Process groups that get a column each. If there are more, groups with the same description share a column."""

MAX_FOLLOWED = 6
"""Consequences of a fault that are shown."""

MAX_PLACED = 4
"""Most culprits whose processes are shown. If there are more, the culprits at a call site share a line."""

MAX_PLACE_FRAMES = 8
"""Innermost frames that are shown where ranks share a stack."""

MAX_LISTED = 20
"""Items of one list that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which parts of an analysis are shown. The verdict is always about all ranks.

    Attributes:
        ranks: show only the rows and timelines of these ranks. None: all.
        groups: show only groups with these names or descriptions. None: all.
        cap: number of causes to show, from the first.
        incomplete: do not mention ranks without a file.
        stacks: show the stacks of the culprits' and the waiting ranks' calls.
        verbose: list every file separately, and show full stacks.
    """

    ranks: frozenset[int] | None = None
    groups: frozenset[str] | None = None
    cap: int = 10
    incomplete: bool = False
    stacks: bool = False
    verbose: bool = False

    def has_rank(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks

    def has_group(self, name: str, description: str) -> bool:
        return self.groups is None or name in self.groups or description in self.groups


@dataclass(frozen=True, slots=True)
class Cell:
    """One rank's progress in one group. ``behind``: how many collectives it lacks compared with the furthest member."""

    group: str
    enqueued: int | None
    completed: int | None
    behind: int

    @property
    def text(self) -> str:
        """``completed/enqueued``, and how many collectives the rank is behind."""
        numbers = "/".join("?" if number is None else str(number) for number in (self.completed, self.enqueued))
        return f"{numbers} -{self.behind}" if self.behind else numbers


@dataclass(slots=True)
class Row:
    """Ranks with equal progress and ending. ``role``: ``"culprit"``, ``"waiting"`` or ``""``."""

    ranks: list[int]
    role: str
    how: str
    cells: tuple[tuple[Cell, ...], ...]


@dataclass(slots=True)
class Grid:
    """A table of ranks and process groups. ``columns`` are titles, in the order of the rows' cells.

    ``left_out``: number of columns beyond the limit.
    """

    columns: list[str]
    rows: list[Row] = field(default_factory=list)
    left_out: int = 0


def causes(analysis: Analysis) -> list[Finding]:
    """The findings that are not consequences."""
    return [finding for finding in analysis.findings if finding.caused_by is None]


def consequences(analysis: Analysis, cause: Finding) -> list[Finding]:
    return [finding for finding in analysis.findings if finding.caused_by == cause.key]


def headline(finding: Finding) -> str:
    """The category and what happened, in one sentence."""
    return f"{finding.category.value}: {told(finding)}"


def told(finding: Finding) -> str:
    """The summary, and how long ranks had waited when the files were written."""
    if not finding.is_waiting or finding.age is None:
        return finding.summary
    return with_wait(finding.summary, f"for {duration_text(finding.age)}")


def where(finding: Finding, rank: int) -> str:
    """``"train.py:42 step"``. For a culprit also where it ran: ``"... (gpu-17, local rank 3, pid 4711)"``."""
    site = site_text(finding.call_sites.get(rank))
    is_missing = finding.category is Category.MISSING_RANK and rank in finding.culprit_ranks
    if is_missing and rank in finding.call_sites and rank not in finding.stacks and site not in finding.summary:
        site = f"its last call was at {site}"  # PyTorch's files do not show where the rank is
    is_shown = rank in finding.culprit_ranks and len(finding.culprit_ranks) <= MAX_PLACED
    place = finding.places.get(rank) if is_shown else None
    return f"{site} ({place_text(*place)})" if place is not None else site


def verdict(analysis: Analysis) -> str:
    """The verdict in one sentence."""
    run = analysis.run
    if run is None:
        return f"No flight-recorder file in {analysis.path} could be read."
    if found := causes(analysis):
        first = headline(found[0])
        return first if len(found) == 1 else f"{len(found)} faults; the first: {first}"
    if analysis.open_calls is not None:
        return f"{analysis.open_calls.text}."
    calls = sum(len(dump.entries) for dump in run.dumps)
    if analysis.unusable:
        return f"{_unusable_text(analysis)}; no fault found in the {count_text(calls, 'call')} that could be read."
    with_file = ranks_text(dump.rank for dump in run.dumps)
    absent = analysis.absent
    if analysis.alone:
        ranks = count_text(1 + len(absent), "rank")
        return f"undecided: of {ranks}, only {with_file} has a file, and its {count_text(calls, 'call')} show no fault."
    if analysis.unread:
        without = f"{ranks_text(absent)} {verb(absent, 'has', 'have')} no file that can be read"
        return f"undecided: {without}; no fault found in {count_text(calls, 'call')} of {with_file}."
    text = f"No fault found in {count_text(calls, 'call')} of {with_file}"
    text += f"; {ranks_text(absent)} {verb(absent, 'has', 'have')} no file." if absent else "."
    if analysis.older_faults:
        text += " An older run in the same place shows a fault."
    if not run.has_completions:
        return f"{text} The files do not show which of them completed."
    if slow := slowest_text(analysis.performance):
        text = f"{text.removesuffix('.')}; {slow}."
    open_calls = sum(call.state is CallState.IN_FLIGHT for call in run.evidence.calls)
    return f"{text} {open_calls} of them had not completed when the files were written." if open_calls else text


def _unusable_text(analysis: Analysis) -> str:
    count, ranks = sum(analysis.unusable.values()), ranks_text(analysis.unusable)
    return f"undecided: {count_text(count, 'call')} of {ranks} could not be read"


def short_verdict(analysis: Analysis) -> str:
    """The verdict in a few words, for a title."""
    found = causes(analysis)
    if found:
        culprits = {rank for cause in found for rank in cause.culprit_ranks}
        names = ", ".join(dict.fromkeys(cause.category.value for cause in found))
        return f"{names}: {ranks_text(culprits)}" if culprits else names
    if analysis.open_calls is not None:
        return f"undecided: {count_text(analysis.open_calls.count, 'call')} open"
    if analysis.run is not None and analysis.unusable:
        return _unusable_text(analysis)
    if analysis.run is not None and (analysis.alone or analysis.unread):
        return f"undecided: files of {len(analysis.run.dumps)} of {count_text(len(analysis.ranks), 'rank')}"
    if analysis.older_faults:
        return "No fault found in the newest run, one in an older run"
    return "No fault found" if analysis.run is not None else "No flight-recorder file could be read"


def open_sections(analysis: Analysis) -> list[tuple[str, list[str]]]:
    """(title, sentences) of what is known if the verdict is undecided."""
    if analysis.run is None or analysis.is_decided:
        return []
    found = analysis.open_calls
    missing = [] if found is None else list(found.missing)
    if analysis.alone:
        missing.append(f"the files of {ranks_text(analysis.absent)}")
    if analysis.unusable:
        ranks = ranks_text(analysis.unusable)
        missing.append(f"entries of {ranks} lack required fields: they may be calls in flight; copy the files again")
    sections = [
        ("Nearest suspects", [] if found is None else [suspects.reason for suspects in found.suspects]),
        ("Missing evidence", missing),
    ]
    return [(title, items) for title, items in sections if items]


def evidence(analysis: Analysis, view: View) -> list[tuple[str, list[str]]]:
    """(title, sentences) about the evidence, about what the files do not show, and about files that were not used."""
    notes = [note.text for note in analysis.notes if not (view.incomplete and note.kind is NoteKind.NO_FILE)]
    sections = [
        ("Files", file_lines(analysis, view)),
        ("Not known", notes),
        *beside(analysis),
        ("Files that were not used", [f"{problem.path}: {problem.text}" for problem in analysis.problems]),
        ("Older runs", other_runs(analysis)),
    ]
    return [(title, items) for title, items in sections if items]


def other_runs(analysis: Analysis) -> list[str]:
    """Sentences about the other runs. If the newest run has no fault, they contain the older runs' first faults."""
    faults, texts = analysis.older_faults, []
    for number, one in enumerate(analysis.others):
        where = f"{count_text(len(one.dumps), 'file')} in {os.path.dirname(one.dumps[0].path) or '.'}"
        fault = f": {headline(faults[number])}" if number in faults else ""
        texts.append(f"{one.job or 'unnamed job'} attempt {one.attempt}, {where}{fault}")
    return texts


def roles(analysis: Analysis) -> dict[int, str]:
    """Rank -> ``"culprit"`` (of a cause) or ``"waiting"``."""
    found: dict[int, str] = {}
    for finding in analysis.findings:
        found.update((rank, "waiting") for rank in finding.waiting_ranks if rank not in found)
    for finding in causes(analysis):
        found.update((rank, "culprit") for rank in finding.culprit_ranks)
    return found


def state_text(rank: Rank, dump: Dump | None) -> str:
    """The rank's state in a few words, as its file shows it."""
    if dump is not None and dump.source != "otel-fr":
        return dump.source
    if dump is None and rank.ending is Ending.UNKNOWN:
        return "no file"
    is_old = rank.ending in (Ending.RUNNING, Ending.UNKNOWN)
    return "alive when it was written" if is_old else ending_text(rank)


def title(group: Group) -> str:
    """``"dp (3)"``."""
    return group_text(group.name, group.description)


def grid(analysis: Analysis, view: View, max_columns: int = 2 * MAX_COLUMNS) -> Grid:
    """The progress of the ranks: culprits first, then waiting ranks. Ranks with equal progress share a row.

    Columns in which a fault shows or ranks are far behind come first. Columns beyond ``max_columns`` are left out.
    """
    run = analysis.run
    if run is None:
        return Grid([])
    shown = [group for group in run.evidence.groups.values() if view.has_group(group.name, group.description)]
    furthest: dict[str, int] = {}
    hindmost: dict[str, int] = {}
    for rank in run.evidence.ranks.values():
        for id_, progress in rank.progress.items():
            if progress.enqueued is not None:
                furthest[id_] = max(furthest.get(id_, 0), progress.enqueued)
                hindmost[id_] = min(hindmost.get(id_, progress.enqueued), progress.enqueued)
    faults = {finding.group.id for finding in causes(analysis) if finding.group is not None}
    weight = {group.id: (group.id in faults, furthest.get(group.id, 0) > hindmost.get(group.id, 0)) for group in shown}
    column_of, columns, left_out = _columns(shown, weight, max_columns)
    role_of = roles(analysis)
    dumps = {dump.rank: dump for dump in run.dumps}
    table = Grid(columns, left_out=left_out)
    alike: dict[tuple[object, ...], Row] = {}
    for number, rank in analysis.ranks.items():
        if not view.has_rank(number):
            continue
        cells: list[list[Cell]] = [[] for _ in columns]
        for id_, progress in rank.progress.items():
            if id_ in column_of:
                behind = 0 if progress.enqueued is None else furthest[id_] - progress.enqueued
                cells[column_of[id_]].append(Cell(id_, progress.enqueued, progress.completed, behind))
        row = Row([number], role_of.get(number, ""), state_text(rank, dumps.get(number)), tuple(map(tuple, cells)))
        # Ranks with equal progress share a row even if the groups of a column differ.
        same = (row.role, row.how, tuple(tuple((c.enqueued, c.completed, c.behind) for c in of) for of in cells))
        known = alike.get(same)
        if known is None:
            alike[same] = row
            table.rows.append(row)
        else:
            known.ranks.append(number)
    order = {"culprit": 0, "waiting": 1, "": 2}
    table.rows.sort(key=lambda row: (order[row.role], row.ranks[0]))
    return table


def _columns(
    groups: Sequence[Group], weight: Mapping[str, tuple[bool, bool]], limit: int
) -> tuple[dict[str, int], list[str], int]:
    """The column of each group, the columns' titles, and the number of columns beyond the limit."""
    apart = len(groups) <= MAX_COLUMNS
    kinds: dict[str, list[Group]] = {}
    for group in groups:
        # Groups share a column by their description, or else by the number of members.
        kind = str(len(group.ranks)) if group.description in UNDESCRIBED else group.description
        kinds.setdefault(group.id if apart else kind, []).append(group)
    ordered = sorted(
        kinds.values(),
        key=lambda of: (
            [-max(weight[group.id][at] for group in of) for at in (0, 1)],
            -max(len(group.ranks) for group in of),
            of[0].name.zfill(9),
        ),
    )
    titles = [title(of[0]) if len(of) == 1 else _title_of_many(of) for of in ordered[:limit]]
    column_of = {group.id: at for at, of in enumerate(ordered[:limit]) for group in of}
    return column_of, titles, max(len(ordered) - limit, 0)


def _title_of_many(groups: Sequence[Group]) -> str:
    if groups[0].description in UNDESCRIBED:
        return f"{len(groups)} groups of {len(groups[0].ranks)}"
    return f"{groups[0].description} ({len(groups)} groups)"


def file_lines(analysis: Analysis, view: View) -> list[str]:
    """The files, one line each. If there are many, the files of ranks that ended alike share a line."""
    run = analysis.run
    if run is None:
        return []
    alike: dict[str, list[Dump]] = {}
    for dump in run.dumps:
        alike.setdefault(state_text(run.evidence.ranks[dump.rank], dump), []).append(dump)
    if view.verbose or len(run.dumps) <= MAX_LISTED:
        how_of = {dump.rank: how for how, dumps in alike.items() for dump in dumps}
        return [f"rank {d.rank}: {d.path} ({count_text(len(d.entries), 'call')}; {how_of[d.rank]})" for d in run.dumps]
    lines = []
    for how, dumps in sorted(alike.items(), key=lambda item: len(item[1])):
        calls = [len(dump.entries) for dump in dumps]
        number = "" if min(calls) == max(calls) else f"{min(calls)} to "
        who = f"{ranks_text(dump.rank for dump in dumps)}: {len(dumps)} files" if len(dumps) > 1 else ""
        who = who or f"rank {dumps[0].rank}: {dumps[0].path}"
        lines.append(f"{who} ({number}{count_text(max(calls), 'call')}{' each' if len(dumps) > 1 else ''}; {how})")
    return lines


def values(finding: Finding) -> list[tuple[list[int], str]]:
    """(ranks, value) for each value in which ranks differ. The value of the fewest ranks comes first."""
    ranks_of = ranks_by_text(sorted(finding.values.items()))
    return sorted(((ranks, value) for value, ranks in ranks_of.items()), key=lambda item: (len(item[0]), item[0]))


def facts(finding: Finding) -> list[tuple[str, str]]:
    """(title, text) of the facts of a finding: collective, group, what differs, and where the ranks are."""
    found: list[tuple[str, str]] = []
    if finding.operation:
        found.append(("collective", collective_text(finding.operation, finding.sequence_id)))
    if finding.group is not None:
        found.append(("process group", f"{title(finding.group)}, {ranks_text(finding.group.ranks)}"))
    found.extend((finding.field or "value", f"{ranks_text(of)}: {value}") for of, value in values(finding))
    for word, ranks in (("culprit", finding.culprit_ranks), ("waiting", finding.waiting_ranks)):
        by_site = ranks_by_text((rank, where(finding, rank)) for rank in ranks)
        found.extend((word, f"{ranks_text(of)}: {site}") for site, of in by_site.items())
    return found


def clean(text: str) -> str:
    """The text on one line, with control characters as escapes (``\\x1b``), so that it cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "    " if c == "\t" else c.encode("unicode_escape").decode() for c in text)


def place_title(ranks: Sequence[int]) -> str:
    """``"3 ranks are here (ranks 0-2)"``, ``"rank 17 is here"``."""
    who = ranks_text(ranks)
    return f"{who} is here" if len(ranks) == 1 else f"{count_text(len(ranks), 'rank')} are here ({who})"


def call_stacks(analysis: Analysis, finding: Finding) -> list[tuple[list[int], tuple[str, ...]]]:
    """The recorded stacks of the calls in which a fault shows: (ranks, frames, innermost first)."""
    by_stack: dict[tuple[str, ...], list[int]] = {}
    collective = analysis.collective_by_name.get(finding.key)
    for rank, calls in sorted(collective.calls.items()) if collective is not None else ():
        if calls[-1].frames:
            by_stack.setdefault(calls[-1].frames, []).append(rank)
    return [(ranks, frames) for frames, ranks in by_stack.items()]
