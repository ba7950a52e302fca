"""``--format perfetto``: the calls of each rank as a trace that ui.perfetto.dev and chrome://tracing open.

The trace is JSON in the Trace Event Format (`FORMAT`). Each rank is a process, each of its process groups a thread, and
each call a complete event (``X``). An arrow (``s`` and ``f``) leads from the culprit to each call that waits for it.
Events of one thread must not overlap, so calls of a group that are in flight at the same time are on separate threads.
The ranks' clocks are aligned by the collectives that they share. Ids of threads do not begin at 0, because Perfetto
takes 0 for the idle process and its thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from otel_fr._version import __version__
from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.assemble.clocks import LATEST, valid
from otel_fr.analyze.collectives import entries_by_rank, key_of, moment
from otel_fr.analyze.output import overview
from otel_fr.analyze.output.arguments import arguments
from otel_fr.analyze.output.overview import View, clean
from otel_fr.dumps.columns import Entries
from otel_fr.dumps.entry import Entry
from otel_fr.incident import timestamp
from otel_fr.match import UNENDED, CallState, Finding, Group, Signature
from otel_fr.presentation import collective_text

FORMAT = "https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU"
"""The document that defines the format."""

MAX_CALLS = 1_000_000
"""Calls in one trace, about 300 MB of JSON, which a browser can open. The newest calls of each rank are kept."""
MAX_LANES = 24
"""Threads for one group of a rank. Further calls that are in flight at the same time are written without duration."""
MAX_ARROWS = 4_096
MAX_FRAMES = 16
_TAIL = 0.02
"""Share of the trace by which calls in flight extend beyond the last known event or the writing of the last file."""
_STEP = 1_000_000
"""Nanoseconds that a call takes if no file has times."""
_FIRST_THREAD = 1 << 31
"""First id of threads. It is above every process id, so that no thread is taken for a process's main thread."""
_VERDICT = 1 << 30
"""Process id of the incidents. A rank's process id is the rank + 1."""

_Write = Callable[[str], object]


class _Slice(NamedTuple):
    """The position of a call in the trace. Times are nanoseconds from the beginning of the trace."""

    process: int
    thread: int
    start: int
    end: int


def write_trace(analysis: Analysis, view: View, write: _Write) -> int:
    """Write the trace piece by piece. Return how many calls were left out: the oldest of each rank, by `MAX_CALLS`."""
    return _Trace(analysis, view, write).run()


class _Trace:
    """One trace while it is written."""

    def __init__(self, analysis: Analysis, view: View, write: _Write) -> None:
        self._analysis, self._view, self._write = analysis, view, write
        self._offsets = {} if analysis.run is None else analysis.run.clock_offsets()
        self._threads = count(_FIRST_THREAD)
        self._arrows = count(1)
        # Calls at which arrows may begin or end: (key of a finding, rank) -> the rank's call; rank -> its newest call
        # that is not known to have ended; a call without duration -> the wait in it.
        self._of_fault: dict[tuple[str, int], _Slice] = {}
        self._newest: dict[int, _Slice] = {}
        self._in_call: dict[_Slice, _Slice] = {}
        self._faults = analysis.by_key
        self._where = {(f.group.id, f.sequence_id) for f in analysis.findings if f.group is not None}
        self._pairs = {f.group.id for f in analysis.findings if f.group is not None and f.p2p is not None}
        self._roles = overview.roles(analysis)
        self._arguments: dict[Signature, str] = {}
        self._columns: dict[tuple[str, str, int], int] = {}
        self._is_first = True
        run = analysis.run
        self._ranks = [] if run is None else [dump.rank for dump in run.dumps if view.has_rank(dump.rank)]
        self._each = max(MAX_CALLS // max(len(self._ranks), 1), 1)
        self._begin, self._end = self._limits()

    def run(self) -> int:
        self._write('{"displayTimeUnit":"ms","otherData":' + json.dumps(self._about()) + ',"traceEvents":[')
        left_out = 0
        run = self._analysis.run
        for rank, entries, groups in entries_by_rank(run) if run is not None else ():
            if self._view.has_rank(rank):
                left_out += self._rank(rank, entries, groups)
        self._verdict()
        self._write("\n]}\n")
        return left_out

    def _about(self) -> dict[str, Any]:
        run = self._analysis.run
        return {
            "producer": f"otel-fr {__version__}",
            "verdict": clean(overview.verdict(self._analysis)),
            "job": "" if run is None else clean(run.job),
            "run_id": "" if run is None else clean(run.run_id),
            "begins_at": timestamp(self._begin / 1e9) if self._begin else None,
            "times": "aligned by the collectives that ranks share" if self._begin else "none: calls are in their order",
        }

    def _limits(self) -> tuple[int, int]:
        """Beginning of the trace in Unix ns, and its end in ns from there."""
        run = self._analysis.run
        firsts: list[int] = []
        lasts: list[int] = []
        for dump in run.dumps if run is not None else ():
            if not self._view.has_rank(dump.rank):
                continue
            offset = self._offsets[dump.rank]
            created, ended = _times(dump.entries)
            firsts += [int(created.min()) + offset] if len(created) else []
            lasts += [int(times.max()) + offset for times in (created, ended) if len(times)]
            written = dump.integer("written_at") or 0
            lasts += [written + offset] if 0 < written < LATEST else []
        if not firsts:
            return 0, self._each * _STEP
        begin = min(firsts)
        latest = max(lasts) - begin
        return begin, latest + max(int(latest * _TAIL), 1_000_000)

    # ---- one rank

    def _rank(self, rank: int, entries: Sequence[Entry], groups: Mapping[str, Group]) -> int:
        """Write the calls of one rank. Return how many were left out."""
        role = self._roles.get(rank, "")
        self._name(rank + 1, f"rank {rank}" + (f", {role}" if role else ""))
        shown = {key: group for key, group in groups.items() if self._view.has_group(group.name, group.description)}
        if self._view.groups is not None:
            entries = [entry for entry in entries if entry.group in shown]
        skipped = max(len(entries) - self._each, 0)
        lanes: dict[tuple[str, bool], _Lanes] = {}
        last = 0
        for entry in entries[skipped:] if skipped else entries:
            group = shown.get(entry.group)
            if group is None:
                continue
            start, end = self._span(rank, entry, last) if self._begin else self._in_order(entry, group, last)
            last = start
            kind = (group.id, entry.stream == "p2p")
            if kind not in lanes:
                name = overview.title(group) + (", sends and receives" if kind[1] else "")
                lanes[kind] = _Lanes(name, _text(clean(name)))
            self._call(rank, entry, group, lanes[kind], start, end)
        return skipped

    def _span(self, rank: int, entry: Entry, last: int) -> tuple[int, int]:
        """Start and end of a call. A call without times immediately follows the rank's previous call."""
        created, ended = moment(entry.created_ns), moment(entry.ended_ns)
        if created is None:
            return last, last
        shift = self._offsets[rank] - self._begin
        start = max(created + shift, 0)
        if entry.state is CallState.IN_FLIGHT:
            return start, max(start, self._end)
        if ended is not None:
            return start, max(start, ended + shift)
        if entry.duration is not None and 0 <= entry.duration < 1e9:
            return start, min(start + int(entry.duration * 1e9), self._end)
        return start, start

    def _in_order(self, entry: Entry, group: Group, last: int) -> tuple[int, int]:
        """Start and end if no file has times: a rank's calls follow each other, a collective's calls begin together."""
        place = (group.id, entry.stream, entry.sequence_id)
        start = max(last + _STEP, self._columns.get(place, 0))
        self._columns[place] = start
        return start, start + _STEP

    def _call(self, rank: int, entry: Entry, group: Group, lanes: _Lanes, start: int, end: int) -> None:
        thread, end = self._lane(rank + 1, lanes, start, end)
        state = entry.state
        ending = " (in flight)" if state is CallState.IN_FLIGHT else " (failed)" if state is CallState.FAILED else ""
        more: dict[str, Any] = {}
        if state is CallState.IN_FLIGHT and entry.frames:
            more["stack"] = "\n".join(map(clean, entry.frames[:MAX_FRAMES]))
        elif entry.site:
            more["site"] = clean(entry.site)
        more |= _queue(entry)
        more |= {"error": clean(entry.error)} if entry.error else {}
        self._event(
            f'"ph":"X","pid":{rank + 1},"tid":{thread},"ts":{_micro(start)},"dur":{_micro(end - start)},'
            f'"name":{_text(entry.signature.operation + ending)},"cat":"{entry.stream}",'
            f'"args":{{"number":{entry.sequence_id},"group":{lanes.title},"state":"{state.value}"'
            f"{self._more(entry.signature)}{_fields(more)}}}"
        )
        place = _Slice(rank + 1, thread, start, end)
        if state in UNENDED:
            self._newest[rank] = place
        if (group.id, entry.sequence_id) in self._where or (entry.stream == "p2p" and group.id in self._pairs):
            key = "/".join(map(str, key_of(rank, entry, group)))
            if key in self._faults:
                self._of_fault[key, rank] = place

    def _lane(self, process: int, lanes: _Lanes, start: int, end: int) -> tuple[int, int]:
        """The thread of a call, and its end there."""
        for index, busy_until in enumerate(lanes.ends):
            if busy_until <= start:
                lanes.ends[index] = end
                return lanes.threads[index], end
        if len(lanes.ends) >= MAX_LANES:
            return lanes.threads[-1], start
        thread = next(self._threads)
        lanes.ends.append(end)
        lanes.threads.append(thread)
        self._name(process, lanes.name + (f", {len(lanes.ends)} at once" if len(lanes.ends) > 1 else ""), thread)
        return thread, end

    def _more(self, signature: Signature) -> str:
        if signature not in self._arguments:
            shown = arguments(signature).items()
            plain = {name.replace(" ", "_"): clean(value) if isinstance(value, str) else value for name, value in shown}
            self._arguments[signature] = _fields(plain)
        return self._arguments[signature]

    # ---- the verdict

    def _verdict(self) -> None:
        """Write the incidents, the calls that culprits should have made, and the arrows to those that wait for them."""
        if not self._analysis.findings:
            return
        self._name(_VERDICT, "otel-fr: incidents")
        drawn: set[tuple[int, int, int]] = set()
        for finding in self._analysis.findings:
            cause = finding if finding.caused_by is None else self._faults.get(finding.caused_by, finding)
            waits = [mark for rank in finding.waiting_ranks if (mark := self._waits(finding, rank)) is not None]
            since = min((mark.start for mark in waits), default=self._end)
            thread = next(self._threads)
            self._name(_VERDICT, "cause" if finding.caused_by is None else "consequence", thread)
            self._slice(
                _Slice(_VERDICT, thread, since, self._end),
                finding.category.value,
                "incident",
                summary=clean(finding.summary),
                **({"details": clean("; ".join(finding.details))} if finding.details else {}),
            )
            for rank in cause.culprit_ranks:
                if not self._view.has_rank(rank):
                    continue
                if rank not in self._ranks:  # the culprit has no file
                    self._ranks.append(rank)
                    self._name(rank + 1, f"rank {rank}, culprit")
                source = self._culprit(cause, rank, since)
                for mark in waits:
                    pair = (source.thread, mark.thread, mark.start)
                    if pair not in drawn and len(drawn) < MAX_ARROWS:
                        drawn.add(pair)
                        self._arrow(source, mark)

    def _waits(self, finding: Finding, rank: int) -> _Slice | None:
        """The call in which a rank waits. If it is drawn without duration, a wait is drawn beside it."""
        known = self._of_fault.get((finding.key, rank)) or self._newest.get(rank)
        if known is None or known.end > known.start:
            return known
        wait = self._in_call.get(known)
        if wait is None:
            wait = self._in_call[known] = _Slice(rank + 1, next(self._threads), known.start, self._end)
            self._name(rank + 1, "waits", wait.thread)
            self._slice(wait, "waits", "wait", summary="its call is not known to have ended")
        return wait

    def _culprit(self, finding: Finding, rank: int, since: int) -> _Slice:
        """A culprit's call in which the fault shows. If there is none, draw it as missing from ``since`` on."""
        known = self._of_fault.get((finding.key, rank))
        if known is None:
            known = _Slice(rank + 1, next(self._threads), since, self._end)
            call = collective_text(finding.operation, finding.sequence_id)
            self._name(rank + 1, "what is missing" if finding.operation else "fault", known.thread)
            site = finding.call_sites.get(rank, "")
            self._slice(
                known,
                f"missing: {clean(call)}" if finding.operation else finding.category.value,
                "missing",
                summary=clean(finding.summary),
                **({"site": clean(site)} if site else {}),
            )
            self._of_fault[finding.key, rank] = known
        return known

    def _slice(self, at: _Slice, name: str, category: str, **values: str) -> None:
        self._event(
            f'"ph":"X","pid":{at.process},"tid":{at.thread},"ts":{_micro(at.start)},"dur":{_micro(at.end - at.start)},'
            f'"name":{_text(name)},"cat":"{category}","args":{{{_fields(values)[1:]}}}'
        )

    def _arrow(self, source: _Slice, target: _Slice) -> None:
        """Draw an arrow that ends where the wait begins, unless the wait began first: Perfetto would reverse it."""
        arrives = target.start
        leaves = min(arrives, source.end)
        if leaves < source.start:
            return
        number = next(self._arrows)
        for phase, at, when in (('"s"', source, leaves), ('"f","bp":"e"', target, arrives)):
            self._event(
                f'"ph":{phase},"id":{number},"pid":{at.process},"tid":{at.thread},"ts":{_micro(when)},'
                '"name":"waits for","cat":"wait"'
            )

    # ---- events

    def _name(self, process: int, name: str, thread: int | None = None) -> None:
        """Name a process, or a thread of it."""
        kind = '"process_name"' if thread is None else f'"thread_name","tid":{thread}'
        self._event(f'"ph":"M","name":{kind},"pid":{process},"args":{{"name":{_text(clean(name))}}}')

    def _event(self, fields: str) -> None:
        self._write(("\n{" if self._is_first else ",\n{") + fields + "}")
        self._is_first = False


@dataclass(slots=True)
class _Lanes:
    """The threads of one group of a rank.

    Attributes:
        name, title: name and title of the group. The title is JSON.
        ends: when the last call of each thread ends.
    """

    name: str
    title: str
    ends: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)


def _times(entries: Entries) -> Iterator[Any]:
    """The valid times at which the calls were enqueued, then those at which they ended."""
    for column in (entries.created, entries.ended):
        yield np.zeros(0, np.int64) if column is None else column[valid(column, len(entries))]


def _queue(entry: Entry) -> dict[str, float]:
    """How long the call waited on its rank until the device began it, and how long it then ran, if both are known."""
    created, started, ended = entry.created_ns, entry.started_ns, entry.ended_ns
    if created is None or started is None or ended is None or not 0 < created <= started <= ended < LATEST:
        return {}
    return {"queued_us": (started - created) / 1e3, "ran_us": (ended - started) / 1e3}


def _micro(nanoseconds: int) -> str:
    """Nanoseconds as microseconds, exactly."""
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}"


def _text(value: str) -> str:
    return json.dumps(value)


def _fields(values: Mapping[str, object]) -> str:
    """The values as further fields of a JSON object, with a comma before each."""
    return "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in values.items())
