"""Reports of imaginary ranks, and a collector's run that takes them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from otel_fr_collector.jobs.calls import Interner, RankCall
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.runs import Runs

from otel_fr.identity import encode_ranks
from otel_fr.match import UNENDED, CallState, Group, Place
from otel_fr.rank_report import RankReport, ReportedCall, ReportedGroup, parse
from tests.support.evidence import SUM

_INTERNER = Interner()
_STATES = {CallState.IN_FLIGHT: "scheduled", CallState.COMPLETED: "completed", CallState.FAILED: "failed"}


def new_run(name: str = "r", **more: Any) -> Run:
    """Make a run."""
    return Run(RunId("job", 0, name), 0.0, 0.0, **more)


def run_in(runs: Runs, name: str = "r", now: float = 0.0, *, job: str = "job", attempt: int = 0) -> Run:
    """Return the run of that name. Asserts that there is room for it."""
    run = runs.get(RunId(job, attempt, name), now)
    assert run is not None
    return run


def rank_in(run: Run, rank: int) -> RankState:
    """Return a rank of the run. Asserts that there is room for it."""
    state = run.rank_state(rank)
    assert state is not None
    return state


def group_in(run: Run, group: Group) -> GroupState:
    """Return a group of the run. Asserts that there is room for it."""
    state = run.group_state(group, len(group.ranks))
    assert state is not None
    return state


def wait_alone(run: Run, world: int = 2, stall: float = 1.0) -> None:
    """Let rank 0 wait from 0 to 2 s in a collective of all ranks. The other ranks have never reported."""
    run.note_origin(0, place=Place("h"), world_size=world, resource={}, now=0.0)
    run.group_state(Group("g", "0", "default_pg", ()), world)
    waits = RankCall(0, 1, "g", "collective", 1, SUM, CallState.IN_FLIGHT, enqueued_at=0.0)
    for number, now in ((1, 0.0), (2, 2.0)):
        apply(run, 0, number, now, stall_s=stall, inflight=[waits])


def told(call: RankCall, now: float) -> ReportedCall:
    """Return a call in the form of a report made ``now``. A call in flight without ``enqueued_at`` counts as posted."""
    signature, is_open = call.signature, call.state in UNENDED
    new = signature.new_group
    return ReportedCall(
        call.group, call.stream, call.sequence_id, call.record, signature.operation, _STATES.get(call.state, "unknown"),
        pair_index=call.pair_index, input_sizes=signature.input_sizes, input_dtypes=signature.input_dtypes,
        output_sizes=signature.output_sizes, output_dtypes=signature.output_dtypes, reduce_op=signature.reduce_op,
        root=signature.root, peer=signature.peer, tag=signature.tag, site=call.site, error=call.error,
        age_s=call.age if call.enqueued_at is None else max(0.0, now - call.enqueued_at),
        is_posted=is_open and call.enqueued_at is None, is_queued=call.is_queued is True,
        new_name=None if new is None else new.name, new_description="" if new is None else new.description,
        new_ranks="" if new is None else encode_ranks(new.ranks), awaits_all=new is not None and new.awaits_all,
    )  # fmt: skip


def told_group(group: Group, enqueued: int = 0, completed: int = 0, **values: Any) -> ReportedGroup:
    """Return a rank's progress in a group."""
    ranks = encode_ranks(group.ranks)
    return ReportedGroup(
        group.id, group.name, group.description, ranks, enqueued=enqueued, completed=completed, **values
    )


def take(run: Run, rank: int, number: int = 1, **more: Any) -> None:
    """Let the run take a report with these keys. The report shares no object with others."""
    body = {"v": 1, "rank": rank, "n": number, "groups": [], **more}
    run.apply(parse(json.dumps(body)), Interner(), now=0.0)


def apply(
    run: Run, rank: int, number: int, now: float, *, inflight: Iterable[RankCall] = (), wall: float = 0.0, **values: Any
) -> bool:
    """Let a rank report ``now``. Returns False if the report is too late, or the run has no room for the rank.

    Args:
        values: fields of the report.
    """
    report = RankReport(
        rank, number, in_flight=tuple(told(call, now) for call in inflight), **({"groups": ()} | values)
    )
    return run.apply(report, _INTERNER, now=now, wall=wall) is not None
