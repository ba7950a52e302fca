"""If no fault was found: what calls that were in flight when the files were written show about a possible fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from otel_fr.analyze.assemble.ages import young_calls
from otel_fr.analyze.assemble.runs import Run
from otel_fr.dumps.columns import NONE
from otel_fr.dumps.model import Dump
from otel_fr.incident import timestamp
from otel_fr.match import UNENDED, Call, CallState, Case, Ending, Suspects, call_text, lagging_calls, suspects
from otel_fr.presentation import count_text, duration_text, ranks_text


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCalls:
    """Calls that have been in flight for long, or for an unknown time.

    Attributes:
        count: how many there are.
        ranks: the ranks that made them.
        oldest: the oldest call as text, with its age or the time at which it was enqueued.
        suspects: the ranks for which the calls may wait, strongest reason first.
        missing: the missing evidence that would decide, as sentences.
    """

    count: int
    ranks: tuple[int, ...]
    oldest: str
    suspects: list[Suspects]
    missing: list[str]

    @property
    def text(self) -> str:
        """``"undecided: 278 calls in flight on ranks 0-15; the oldest is ..."``"""
        calls = count_text(self.count, "call")
        return f"undecided: {calls} in flight on {ranks_text(self.ranks)}; the oldest is {self.oldest}"


def long_open_calls(run: Run) -> OpenCalls | None:
    """Find calls that may have been in flight for the window or longer, on ranks without a clean end. None: none.

    A call of unknown age does not count if another rank has completed it and it was enqueued just before the file was
    modified: it only lags. If no recorder records completions, and all members have joined all calls, no call counts.
    """
    evidence = run.evidence
    states = (CallState.IN_FLIGHT,) if run.has_completions else UNENDED
    calls = [
        call
        for call in evidence.calls
        if call.state in states
        and evidence.ranks[call.rank].ending is not Ending.CLEAN
        and (call.age is None or call.age >= evidence.window)
    ]
    if not calls:
        return None
    case = Case(evidence)
    lagging = lagging_calls(case)
    young = {dump.rank: young_calls(dump, evidence.window) for dump in run.dumps}
    calls = [
        c for c in calls if (c.rank, c.record) not in lagging or c.record not in young[c.rank] or c.age is not None
    ]
    found = suspects(case)
    if not calls or (not run.has_completions and not found):
        return None
    return OpenCalls(
        count=len(calls),
        ranks=tuple(sorted({call.rank for call in calls})),
        oldest=_oldest(run, calls, found),
        suspects=found,
        missing=_missing(run, calls),
    )


def _oldest(run: Run, calls: Iterable[Call], found: list[Suspects]) -> str:
    """The oldest call as text: by age; if no age is known, by the ranks' clocks; else the first suspect's call."""
    aged = [call for call in calls if call.age is not None]
    if aged:
        call = max(aged, key=lambda call: (call.age or 0.0, -call.rank))
        return f"{_on(run, call)}, in flight for {duration_text(call.age or 0.0)}"
    created = {dump.rank: _created(dump) for dump in run.dumps}
    timed = [(created[call.rank][call.record], call) for call in calls if call.record in created[call.rank]]
    if timed:
        when, call = min(timed, key=lambda item: (item[0], item[1].rank))
        return f"{_on(run, call)}, enqueued at {timestamp(when / 1e9)}"
    first = found[0].ranks[0] if found else -1
    return _on(run, min(calls, key=lambda call: (call.rank != first, call.rank, call.record)))


def _on(run: Run, call: Call) -> str:
    return f"{call_text(run.evidence, call)} on rank {call.rank}"


def _created(dump: Dump) -> Mapping[int, int]:
    """Record -> Unix nanoseconds at which the call was enqueued."""
    created = dump.entries.created
    if created is None:
        return {}
    which = np.flatnonzero(created != NONE)
    return dict(zip(dump.entries.record[which].tolist(), created[which].tolist(), strict=True))


def _missing(run: Run, calls: Iterable[Call]) -> list[str]:
    """The missing evidence that would decide, as sentences."""
    ranks = run.evidence.ranks
    absent = sorted(rank for rank, info in ranks.items() if info.ending is Ending.UNKNOWN)
    found = [f"the files of {ranks_text(absent)}"] if absent else []
    if any(call.age is None for call in calls):
        found.append("since when the calls have been in flight: a second set of files, written later, shows which move")
    untold = sorted(
        rank
        for rank, info in ranks.items()
        if info.ending is not Ending.UNKNOWN and any(p.enqueued is None for p in info.progress.values())
    )
    if untold:
        found.append(f"how far {ranks_text(untold)} came in some groups (pg_status, or files with completed calls)")
    if any(call.signature.any_source for call in calls if call.stream == "p2p"):
        found.append("which send belongs to which receive: files with completed calls")
    return found
