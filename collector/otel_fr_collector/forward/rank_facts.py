"""What the collector knows about the ranks of an incident, for their spans in the incident's trace."""

from __future__ import annotations

from collections.abc import Iterable

from otel_fr import semconv as names
from otel_fr.incident import CollectorIncidentData
from otel_fr.incident_trace import RankFacts
from otel_fr.match import Category, Place
from otel_fr.presentation import group_name
from otel_fr.stacks import site_of
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run


def waiting_facts(run: Run | None, data: CollectorIncidentData, ranks: Iterable[int]) -> list[RankFacts]:
    """Facts about waiting ranks: the call in flight in which each waits."""
    return [_waiting(run, data, rank) for rank in ranks]


def culprit_facts(run: Run | None, data: CollectorIncidentData, ranks: Iterable[int]) -> list[RankFacts]:
    """Facts about culprits: where each is, or what ended it."""
    errors = {one["rank"]: one["error"] for one in data["culprits"]}
    found = []
    for rank in ranks:
        state = None if run is None else run.ranks.get(rank)
        stack = data["stacks"].get(str(rank), "") or ("" if state is None else state.stack)
        if Category(data["category"]).is_mismatch:
            site = data["call_sites"].get(str(rank), "")
        else:
            site = "" if state is None else state.exception_site or state.exit_site or state.site
        error = errors.get(rank, "") or ("" if state is None else state.exception)
        found.append(RankFacts(rank, _resource(run, rank), site=site or site_of(stack), stack=stack, error=error))
    return found


def is_known(run: Run | None, rank: int) -> bool:
    """Return whether it is known where a rank is or how it ended. True also if nothing more will come from it."""
    state = None if run is None else run.ranks.get(rank)
    return state is None or bool(state.stack or state.exception) or state.ended is not None


def _waiting(run: Run | None, data: CollectorIncidentData, rank: int) -> RankFacts:
    state = None if run is None else run.ranks.get(rank)
    call = None if state is None else _call_in(state, data)
    if run is None or state is None or call is None:
        return RankFacts(rank, _resource(run, rank), site=data["call_sites"].get(str(rank), ""))
    known = run.groups.get(call.group)
    own = data["process_group"]
    if own is not None and call.group == own["id"]:
        group = group_name(own["name"], own["description"])
    else:
        group = "" if known is None else group_name(known.group.name, known.group.description)
    return RankFacts(
        rank,
        _resource(run, rank),
        call=f"{call.signature.operation} {group}".strip(),
        sequence_id=call.sequence_id,
        started=call.enqueued_wall,
        site=call.site,
        stack=state.stack,
    )


def _call_in(state: RankState, data: CollectorIncidentData) -> RankCall | None:
    """The rank's call in the incident's collective if it is in flight, otherwise its oldest call in flight."""
    calls = state.contents.inflight
    group = data["process_group"]
    if group is not None:
        for call in calls:
            if (call.group, call.sequence_id) == (group["id"], data["sequence_id"]):
                return call
    return calls[0] if calls else None


def _resource(run: Run | None, rank: int) -> dict[str, object]:
    if run is None:
        return {names.RANK: rank}
    state = run.ranks.get(rank)
    place = Place() if state is None else state.place
    return {
        **run.resource,
        names.RANK: rank,
        names.WORLD_SIZE: run.world_size,
        names.JOB_ATTEMPT: run.id.attempt,
        names.HOST_NAME: place.host or None,
        names.PROCESS_PID: place.pid,
        names.LOCAL_RANK: place.local_rank,
        names.GPU: place.gpu or None,
        names.K8S_POD_NAME: place.pod or None,
        names.K8S_NODE_NAME: place.node or None,
        names.K8S_NAMESPACE: place.namespace or None,
    }
