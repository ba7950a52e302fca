"""Decides which ranks have failed, and notifies the monitors of their peers, so that the peers stop waiting.

A rank has failed if its monitor saw its process end badly, if an incident names it as stuck or overdue, or if the rank
and its monitor are silent while other ranks wait for it. It has not failed if others only wait for it: it may be slow
for a good reason. It has not failed either if another monitor on its machine sees its process running. Then only its
own monitor is silent.

A wrong decision does little harm. A rank ends only its own calls, in a group with a failed member, and only if it has
waited for longer than the stall time, or for a second if that member has ended (`otel_fr.monitor.control.peers`).
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from otel_fr.control.v1.control_pb2 import Command, PeerFailed, PeerRecovered
from otel_fr.identity import decode_ranks
from otel_fr.match import Category, Ending, Finding, Rank
from otel_fr.match.facts.ranks import was_stopped
from otel_fr.match.texts.ranks import describe_ending, ending_text
from otel_fr.presentation import ranks_text
from otel_fr.printable import one_line
from otel_fr_collector.control import Control
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.return_grace import ReturnGrace
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.snapshot import reported_calls
from otel_fr_collector.jobs.stops import end_of

STEP_SECONDS = 0.2
"""Seconds between two checks of a run."""
MAX_REASON = 500
"""Characters of a reason, or of an incident's summary, that monitors get."""
MAX_COMMANDS = 8
"""About how many commands one check of a run causes. A monitor's queue has room for twice as many."""

KINDS = {
    Category.RANK_DEAD: "ended",
    Category.RANK_STUCK: "stuck",
    Category.HEARTBEAT_MISSED: "heartbeat_missed",
    Category.SECTION_OVERRUN: "section_overrun",
}
"""Categories of incidents in which the culprits have failed, and the kind of failure."""
MAX_FIRST = 8
"""Most ranks that a reason names as ended before others were stopped."""
_BAD = (Ending.RAISED, Ending.KILLED, Ending.GONE)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one or more ranks count as failed. The fields are as in `PeerFailed`."""

    kind: str
    reason: str
    incident_id: str = ""


class PeerFailures:
    """Follows the runs that have a watching monitor, except while their ranks may be reconnecting.

    Args:
        grace: nothing new is sent about a run while this waits for the run's ranks.
        clock: monotonic time in seconds.
    """

    def __init__(
        self, runs: Runs, book: IncidentBook, control: Control, grace: ReturnGrace, clock: Callable[[], float]
    ) -> None:
        self._runs = runs
        self._book = book
        self._control = control
        self._grace = grace
        self._started = self._stepped = clock()
        self._told: dict[RunId, dict[int, Failure]] = {}

    def step(self, now: float) -> None:
        """Tell the monitors what has changed. ``now``: monotonic."""
        if now - self._stepped < STEP_SECONDS:
            return
        self._stepped = now
        for run_id in [run_id for run_id in self._told if run_id not in self._runs.by_id]:
            del self._told[run_id]
            self._control.set_standing(run_id, ())
        for run in self._runs.by_id.values():
            if self._control.watches(run.id) and not run.is_replaced and not self._grace.waits_for(run, now):
                self._tell(run, self._failed(run, now))

    def _tell(self, run: Run, failed: dict[int, Failure]) -> None:
        told = self._told.get(run.id, {})
        news = {rank: why for rank, why in failed.items() if rank not in told or told[rank].kind != why.kind}
        recovered = [rank for rank in told if rank not in failed]
        if not news and not recovered:
            return
        for command in _failures(news):
            self._control.send(run.id, command)
        if recovered:
            self._control.send(run.id, Command(peer_recovered=PeerRecovered(ranks=recovered)))
        self._control.set_standing(run.id, _failures(failed))
        if failed:
            self._told[run.id] = failed
        else:
            self._told.pop(run.id, None)

    # ---- who has failed

    def _failed(self, run: Run, now: float) -> dict[int, Failure]:
        failed = {**self._still_silent(run, now), **dict(self._silent(run, now))}
        for incident in self._book.open_of(run.id):
            kind = KINDS.get(incident.finding.category)
            if kind is not None and incident.may_explain:
                why = Failure(kind, incident.finding.summary.split("; ")[0][:MAX_REASON], incident.id)
                failed.update(dict.fromkeys(_failed_of(incident.finding, run), why))
        ended = [
            (end_of(state), state) for state in run.ranks.values() if state.ended is not None and state.ending in _BAD
        ]
        by_themselves = (state for end, state in ended if not was_stopped(end))
        first = heapq.nsmallest(MAX_FIRST, by_themselves, key=lambda state: state.ended or 0.0)
        for end, state in ended:
            known = failed.get(state.rank)
            how = _how_it_ended(end, state, first)
            failed[state.rank] = Failure("ended", how, known.incident_id if known else "")
        return failed

    def _still_silent(self, run: Run, now: float) -> dict[int, Failure]:
        """The ranks that failed by silence and have sent no report since, even if no rank waits for them any more.

        Only a report is a sign of life. A delay of the collector does not excuse the silence.
        """
        told = {rank: why for rank, why in self._told.get(run.id, {}).items() if why.kind == "silent"}
        states = {rank: run.ranks[rank] for rank in told if rank in run.ranks}
        return {rank: told[rank] for rank, state in states.items() if state.is_silent(now)}

    def _silent(self, run: Run, now: float) -> Iterable[tuple[int, Failure]]:
        """Ranks that are silent while a rank that still reports waits for them in a group.

        If half of the nodes are silent (on a single node: half of its ranks), this collector is probably cut off, and
        no rank has failed. The silence counts if a rank that still reports cannot reach a peer either.
        """
        floor, behind = run.unheard(now)
        floor = max(floor, self._started)
        silent = [
            state
            for state in run.ranks.values()
            if state.ended is None
            and (report := state.report) is not None
            and state.silent_for(now, floor, behind) > max(report.peer_timeout, state.silence)
        ]
        if not silent:
            return
        quiet = {state.rank for state in silent}
        by_host: dict[str, list[int]] = {}
        for state in run.ranks.values():
            by_host.setdefault(state.host, []).append(state.rank)
        dark = {host for host, ranks in by_host.items() if quiet.issuperset(ranks)}
        few_hosts = 2 * len(dark) < len(by_host)
        few_ranks = 2 * len(silent) < len(run.ranks)
        heard = {state.rank for state in run.ranks.values() if not state.is_silent(now, floor, behind)}
        reports = (run.ranks[rank].report for rank in heard)
        is_cut_off = not (few_hosts if len(by_host) > 1 else few_ranks)
        if is_cut_off and not any(report is not None and report.unreached for report in reports):
            return
        waited_for = self._waited_for(run, quiet, heard, now)
        if waited_for:
            waited_for -= _seen_running(run, quiet, {rank for state in silent for rank in by_host[state.host]})
        for state in silent:
            if state.rank in waited_for:
                yield state.rank, Failure("silent", _silence(state, by_host[state.host], dark))

    def _waited_for(self, run: Run, quiet: set[int], heard: set[int], now: float) -> set[int]:
        """The ``quiet`` members of groups in which a ``heard`` rank has waited for its peer timeout."""
        found: set[int] = set()
        for state in run.ranks.values():
            report = state.report
            if state.rank not in heard or report is None or state.ended is not None or not state.contents.inflight:
                continue
            for call in reported_calls(run, state):
                if call.enqueued_at is None or now - state.lag - call.enqueued_at < report.peer_timeout:
                    continue
                group = run.groups.get(call.group)
                if group is not None:
                    found.update(quiet.intersection(group.group.ranks))
        return found


def _seen_running(run: Run, quiet: set[int], beside: set[int]) -> set[int]:
    """The ranks whose processes are running, according to reports of ranks on the same machines that have not ended.

    Args:
        beside: all ranks of these machines, including ``quiet`` ones.
    """
    reports = [state.report for rank in beside - quiet if (state := run.ranks[rank]).ended is None]
    found: set[int] = set()
    for text in {report.running_here for report in reports if report is not None}:
        with contextlib.suppress(ValueError):
            found.update(decode_ranks(text))
    return found


def _failed_of(finding: Finding, run: Run) -> Iterable[int]:
    """The culprits of a finding that have failed. Other culprits beside a stuck rank may only be late."""
    if finding.category is not Category.RANK_STUCK or finding.stuck_on == "device":
        return finding.culprit_ranks
    return [rank for rank in finding.culprit_ranks if rank in run.ranks and run.ranks[rank].python_blocked]


def _failures(failed: dict[int, Failure]) -> list[Command]:
    """One command for each reason. Beyond `MAX_COMMANDS`, a rank joins a command of its kind, whatever the reason."""
    by_reason: dict[Failure, list[int]] = {}
    for rank in sorted(failed):
        why = failed[rank]
        if why not in by_reason and len(by_reason) >= MAX_COMMANDS:
            why = next((known for known in by_reason if known.kind == why.kind), why)
        by_reason.setdefault(why, []).append(rank)
    return [
        Command(peer_failed=PeerFailed(incident_id=why.incident_id, ranks=ranks, reason=why.reason, kind=why.kind))
        for why, ranks in by_reason.items()
    ]


def _how_it_ended(end: Rank, state: RankState, first: list[RankState]) -> str:
    """How a rank ended, as text. Ranks that were stopped in the same way have the same text and share a command.

    Args:
        first: the first ranks that ended badly without being stopped.
    """
    if first and was_stopped(end):
        before = [one.rank for one in first if (one.ended or 0.0) < (state.ended or 0.0)]
        if before:
            how = ending_text(end) if end.ending is Ending.KILLED else "stopped from outside"
            return f"{how}, after {ranks_text(before)} had ended"[:MAX_REASON]
    where = f" ({one_line(state.host)})" if state.host else ""
    return one_line(f"rank {state.rank}{where} {describe_ending(end)}")[:MAX_REASON]


def _silence(state: RankState, of_host: list[int], dark: set[str]) -> str:
    if state.host in dark and len(of_host) > 1:
        return f"node {one_line(state.host)} is silent ({ranks_text(sorted(of_host))})"[:MAX_REASON]
    return f"rank {state.rank} ({one_line(state.host)}) and its monitor are silent"[:MAX_REASON]
