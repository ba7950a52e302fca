"""The last calls of each rank, laid out for the page: in the order of the collectives, and in time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.collectives import entries_by_rank, key_of, moment
from otel_fr.analyze.output import overview
from otel_fr.analyze.output.arguments import arguments
from otel_fr.analyze.output.overview import View, clean
from otel_fr.dumps.entry import Entry
from otel_fr.match import CallState, Finding, Group, Signature
from otel_fr.match.facts.instances import InstanceKey

_LONGEST = 1e9
"""Longest duration that is drawn for a call, in seconds: files may contain any number."""
MAX_RANKS = 1024
"""Most rows. Culprits and waiting ranks come first."""
MAX_CALLS = 40_000
"""Most bars in all rows together."""
MAX_STACKS = 500
_MIN_EACH, _MAX_EACH = 8, 256
_MAX_FRAMES = 16

_STATES = {CallState.COMPLETED: 0, CallState.IN_FLIGHT: 1, CallState.FAILED: 2, CallState.UNKNOWN: 3}
_MISSING = 4
_TAIL = 0.12
"""Share of the chart's width by which calls in flight extend beyond the last known event."""


@dataclass(slots=True)
class _Bar:
    key: InstanceKey
    group: Group
    entry: Entry
    start: float | None
    end: float | None


def timeline(analysis: Analysis, view: View) -> dict[str, Any]:
    """The data for ``page.js``, which documents it. Each text occurs once, and calls are lists of numbers."""
    role_of = overview.roles(analysis)
    order = {"culprit": 0, "waiting": 1}
    ranks = sorted((r for r in analysis.ranks if view.has_rank(r)), key=lambda r: (order.get(role_of.get(r, ""), 2), r))
    left_out = len(ranks) - MAX_RANKS
    ranks = ranks[:MAX_RANKS]
    fault_of = analysis.by_key
    bars = _newest(analysis, view, ranks, fault_of)
    columns = _columns(bars)
    aligned = {} if analysis.run is None else analysis.run.clock_offsets()
    offsets = {rank: shift / 1e9 for rank, shift in aligned.items()}
    timed = [bar for of in bars.values() for bar in of if bar.start is not None]
    first = min((offsets[r] + b.start for r, of in bars.items() for b in of if b.start is not None), default=0.0)
    has_completions = analysis.run is not None and analysis.run.has_completions
    texts = _Texts()
    rows = []
    latest_column, latest = 0, 0.0
    for rank in ranks:
        calls = []
        for bar in bars[rank]:
            start = None if bar.start is None else offsets[rank] + bar.start - first
            end = None if bar.end is None else offsets[rank] + bar.end - first
            latest = max(latest, start or 0.0, end or 0.0)
            latest_column = max(latest_column, columns[bar.key])
            name = "/".join(map(str, bar.key))
            calls.append(_call(texts, bar, columns[bar.key], start, end, name in fault_of, has_completions))
        rows.append({"rank": rank, "role": role_of.get(rank, ""), "calls": calls})
    _add_missing(analysis, rows, bars, columns, offsets, first, texts)
    return {
        "rows": rows,
        "columns": latest_column + 1,
        "end": round(latest * (1 + _TAIL) * 1e6) + 1,
        "timed": bool(timed),
        "leftOut": max(left_out, 0),
        **texts.tables,
    }


def _newest(analysis: Analysis, view: View, ranks: list[int], fault_of: Mapping[str, Finding]) -> dict[int, list[_Bar]]:
    """The last calls of each rank, preceded by older calls in which a fault shows."""
    each = min(max(MAX_CALLS // max(len(ranks), 1), _MIN_EACH), _MAX_EACH)
    found: dict[int, list[_Bar]] = {rank: [] for rank in ranks}
    faults = {(f.group.id, f.sequence_id) for f in fault_of.values() if f.group is not None}
    for rank, entries, groups in entries_by_rank(analysis.run) if analysis.run is not None else ():
        if rank not in found:
            continue
        shown = {key: group for key, group in groups.items() if view.has_group(group.name, group.description)}
        if view.groups is not None:
            entries = [entry for entry in entries if entry.group in shown]
        start = max(len(entries) - each, 0)
        wanted = {(key, number) for key, group in shown.items() for id_, number in faults if id_ == group.id}
        early = islice(entries, start)
        picked = [entry for entry in early if (entry.group, entry.sequence_id) in wanted][:_MIN_EACH]
        picked += [entries[at] for at in range(start, len(entries))]
        found[rank] = [
            _Bar(key_of(rank, entry, shown[entry.group]), shown[entry.group], entry, *_span(entry))
            for entry in picked
            if entry.group in shown
        ]
    return found


def _span(entry: Entry) -> tuple[float | None, float | None]:
    """Start and end in seconds of the rank's own clock."""
    created, ended = moment(entry.created_ns), moment(entry.ended_ns)
    if created is None:
        return None, None
    start = created / 1e9
    if entry.state is CallState.IN_FLIGHT or (ended is None and entry.duration is None):
        return start, None
    return start, max(start, ended / 1e9 if ended is not None else start + min(entry.duration or 0.0, _LONGEST))


def _columns(bars: Mapping[int, list[_Bar]]) -> dict[InstanceKey, int]:
    """Give each collective a column after the columns of all calls that its ranks made before it.

    If ranks disagree about the order (a swapped pair, a deadlock), the collective that was seen first comes first.
    """
    after: dict[InstanceKey, set[InstanceKey]] = {}
    waits: dict[InstanceKey, int] = {}
    for of in bars.values():
        previous: InstanceKey | None = None
        for bar in of:
            after.setdefault(bar.key, set())
            waits.setdefault(bar.key, 0)
            if previous is not None and previous != bar.key and bar.key not in after[previous]:
                after[previous].add(bar.key)
                waits[bar.key] += 1
            previous = bar.key
    columns = dict.fromkeys(waits, 0)
    ready = deque(key for key, count in waits.items() if count == 0)
    rest = iter(list(waits))
    done: set[InstanceKey] = set()
    while len(done) < len(waits):
        key = ready.popleft() if ready else next(key for key in rest if key not in done)
        if key in done:
            continue
        done.add(key)
        for later in after[key]:
            if later not in done:
                columns[later] = max(columns[later], columns[key] + 1)
                waits[later] -= 1
                if waits[later] == 0:
                    ready.append(later)
    return columns


def _add_missing(
    analysis: Analysis,
    rows: list[dict[str, Any]],
    bars: Mapping[int, list[_Bar]],
    columns: Mapping[InstanceKey, int],
    offsets: Mapping[int, float],
    first: float,
    texts: _Texts,
) -> None:
    """Add an empty bar to the row of every culprit that did not enqueue the call in which its fault shows."""
    keys = {"/".join(map(str, key)): key for key in columns}
    starts: dict[InstanceKey, float] = {}
    present: set[tuple[int, InstanceKey]] = set()
    for rank, of in bars.items():
        for bar in of:
            present.add((rank, bar.key))
            if bar.start is not None:
                begun = bar.start + offsets[rank] - first
                starts[bar.key] = min(starts.get(bar.key, begun), begun)
    by_rank = {row["rank"]: row for row in rows}
    for finding in overview.causes(analysis):
        key = keys.get(finding.key)
        if key is None or finding.group is None:
            continue
        for rank in finding.culprit_ranks:
            if rank in by_rank and (rank, key) not in present:
                call = [texts.put("operations", finding.operation), texts.put("groups", overview.title(finding.group))]
                begun = _micro(starts.get(key))
                call += [finding.sequence_id or 0, columns[key], begun, -1, _MISSING, 1, -1, -1, -1]
                by_rank[rank]["calls"].append(call)


class _Texts:
    """Stores each text once. Calls refer to it by its index."""

    def __init__(self) -> None:
        self.tables: dict[str, list[str]] = {"operations": [], "groups": [], "details": [], "stacks": []}
        self._indexes: dict[tuple[str, str], int] = {}
        self._stacks: dict[tuple[str, ...], int] = {}
        self._signatures: dict[Signature, int] = {}

    def put(self, table: str, text: str) -> int:
        index = self._indexes.get((table, text))
        if index is None:
            index = self._indexes[table, text] = len(self.tables[table])
            self.tables[table].append(clean(text))
        return index

    def details(self, signature: Signature) -> int:
        index = self._signatures.get(signature)
        if index is None:
            text = "; ".join(f"{name} {value}" for name, value in arguments(signature).items())
            index = self._signatures[signature] = self.put("details", text)
        return index

    def stack(self, entry: Entry) -> int:
        frames = entry.frames[:_MAX_FRAMES] or ((entry.site,) if entry.site else ())
        if not frames:
            return -1
        index = self._stacks.get(frames)
        if index is None:
            if len(self._stacks) >= MAX_STACKS:
                return -1
            index = self._stacks[frames] = len(self.tables["stacks"])
            self.tables["stacks"].append("\n".join(map(clean, frames)))
        return index


def _call(
    texts: _Texts, bar: _Bar, column: int, start: float | None, end: float | None, fault: bool, has_completions: bool
) -> list[int]:
    entry = bar.entry
    took = entry.age if entry.state is CallState.IN_FLIGHT else entry.duration
    return [
        texts.put("operations", entry.signature.operation),
        texts.put("groups", overview.title(bar.group)),
        entry.sequence_id,
        column,
        _micro(start),
        _micro(end),
        _STATES[entry.seen_state(has_completions)],
        int(fault),
        texts.details(entry.signature),
        texts.stack(entry),
        _micro(took),
    ]


def _micro(seconds: float | None) -> int:
    return -1 if seconds is None else round(max(-_LONGEST, min(seconds, _LONGEST)) * 1e6)
