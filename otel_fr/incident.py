"""A `Finding` as the incident that people and programs see: one form, the same live and from files."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Literal, TypedDict

from otel_fr import identity
from otel_fr.match.finding import Category, CategoryName, Finding
from otel_fr.match.model import Place
from otel_fr.presentation import duration_text, state_summary, with_wait

StateName = Literal["firing", "resolved"]
SeverityName = Literal["critical", "warning"]
ResolutionName = Literal["over", "ended", "stopped", "replaced", "unheard", "dropped"]


class ProcessGroupData(TypedDict):
    """A process group.

    Attributes:
        id: 16 hex digits.
        name: in c10d.
        description: `group_desc`; empty: none.
        ranks: global, in rising order; empty: members unknown.
    """

    id: str
    name: str
    description: str
    ranks: list[int]


class StackGroupData(TypedDict):
    """Ranks whose threads are at the same place.

    Attributes:
        ranks: global.
        frames: `file:line function`, outermost first.
    """

    ranks: list[int]
    frames: list[str]


class PlaceData(TypedDict):
    """Where a rank runs, as `otel_fr.match.Place`; null: not known.

    Attributes:
        host: name of the host that the process sees.
        pid: number of the process on its host.
        local_rank: the launcher's `LOCAL_RANK`.
        gpu: number on the host.
        pod: in Kubernetes.
        node: in Kubernetes.
        namespace: of the pod.
    """

    host: str | None
    pid: int | None
    local_rank: int | None
    gpu: str | None
    pod: str | None
    node: str | None
    namespace: str | None


class IncidentData(TypedDict):
    """An incident as JSON; docs/reference/incident.md has an example. Keys of dicts are ranks as text, rising.

    Times are RFC 3339 in UTC, as `timestamp` writes them.

    Attributes:
        id: 16 hex digits: a hash of run id and fault, the same live and from files.
        job: name of its job.
        attempt: 0, and one more with each restart.
        category: of the fault.
        rule: the rule that made it.
        process_group: in which the fault shows.
        operation: of the collective in which the fault shows.
        sequence_id: number of the collective in its group.
        culprit_ranks: none in a consequence.
        waiting_ranks: who waits.
        field: of a mismatch: what differs.
        values: of a mismatch: each rank's value.
        stuck_on: where a culprit is blocked: `host`, `device` or `lost` (its machine sends no reports).
        call_sites: `file:line function`, by rank.
        stacks: of culprits, by rank.
        stack_groups: where culprits and waiting ranks are, most ranks first, at most 16.
        caused_by: id of the incident that it follows from.
        trace_id: 32 hex digits: the trace with all ranks' spans of a collective.
        started_at, detected_at: RFC 3339, UTC.
        state: `firing` until it is `resolved`.
        summary: one sentence.
        details: further sentences.
        waiting_since: when the rank that has waited longest began to wait; null: no rank waits, or it is not known.
        places: where ranks run, by rank: the first 256 culprits and 32 waiting ranks.
    """

    id: str
    job: str
    attempt: int
    category: CategoryName
    rule: str
    process_group: ProcessGroupData | None
    operation: str | None
    sequence_id: int | None
    culprit_ranks: list[int]
    waiting_ranks: list[int]
    field: str | None
    values: dict[str, str]
    stuck_on: str | None
    call_sites: dict[str, str]
    stacks: dict[str, str]
    stack_groups: list[StackGroupData]
    caused_by: str | None
    trace_id: str | None
    started_at: str | None
    detected_at: str | None
    state: StateName
    summary: str
    details: list[str]
    waiting_since: str | None
    places: dict[str, PlaceData]


class CulpritData(TypedDict):
    """A culprit. Empty: not known, or none.

    Attributes:
        rank: its global number.
        host: its node.
        error: its uncaught exception, cut short.
        replica: torchft's name of its replica; null: it has none.
        ending: a value of `otel_fr.match.Ending` or `exiting`; null: it runs, or nothing is known of it.
        signal: the one that ended it.
    """

    rank: int
    host: str
    error: str
    replica: str | None
    ending: str | None
    signal: int | None


class NcclRasData(TypedDict):
    """What NCCL's RAS said, as evidence on which no verdict rests.

    Attributes:
        asked_at: RFC 3339, UTC.
        version: NCCL's.
        lines: sentences.
    """

    asked_at: str | None
    version: str
    lines: list[str]


class CollectorIncidentData(IncidentData):
    """An incident of the collector, which follows it over time.

    Attributes:
        job_title: what the job is called for a reader.
        severity: `critical`, or `warning`: the job runs, and is slow.
        what_to_do: one or two sentences; null: it is over and nothing is left to do, or follows from another.
        culprits: the first 16.
        nccl_ras: null: it was not asked, or did not answer, or the incident follows from another.
        flight_recorder_files: paths, by rank.
        run_id: tells runs of one job apart.
        updated_at: RFC 3339, UTC.
        resolved_at: RFC 3339, UTC; null: it fires.
        resolution: why it was resolved: `over`: the fault is; `ended`: all ranks have, because of it; `stopped`,
            `replaced`: the job was; `unheard`: no report for 10 minutes; `dropped`: too many fire. null: it fires.
        revision: 1 when opened, one more with each change.
    """

    job_title: str
    severity: SeverityName | None
    what_to_do: str | None
    culprits: list[CulpritData]
    nccl_ras: NcclRasData | None

    flight_recorder_files: dict[str, str]
    run_id: str
    updated_at: str | None
    resolved_at: str | None
    resolution: ResolutionName | None
    revision: int


class IncidentHead(TypedDict):
    """What the collector's API gives of an incident in every view, as far as lists show it.

    Attributes:
        consequence_count: how many incidents follow from it; null: not in a list.
    """

    id: str
    run_id: str
    job: str
    job_title: str
    attempt: int
    category: CategoryName
    severity: SeverityName | None
    culprit_ranks: list[int]
    caused_by: str | None
    detected_at: str | None
    updated_at: str | None
    state: StateName
    summary: str
    waiting_since: str | None
    consequence_count: int | None
    revision: int


FIELDS = tuple(IncidentData.__annotations__)
"""Every key of `IncidentData`, in the order in which it is written."""


def trace_id(run_id: str, finding: Finding) -> str | None:
    """Return the trace (32 hex digits) with all ranks' spans of the finding's collective; None: it shows in no call."""
    if finding.group is None:
        return None
    if finding.p2p is not None:
        return identity.p2p_trace_id(run_id, finding.group.id, *finding.p2p).hex()
    if finding.sequence_id is None or finding.stream == "p2p":
        return None
    return identity.trace_id(run_id, finding.group.id, finding.stream, finding.sequence_id).hex()


def timestamp(seconds: float | None) -> str | None:
    """Return Unix seconds as RFC 3339 in UTC with milliseconds (``"2026-01-02T03:04:05.678Z"``); None: no such time."""
    if seconds is None:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):  # a year that datetime does not have: a wrong clock or a damaged file
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def unix(text: str | None) -> float | None:
    """The inverse of `timestamp`. None: the text is None, or not a time."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None


def incident_data(
    finding: Finding,
    *,
    job: str,
    attempt: int,
    run_id: str,
    started_at: float | None,
    detected_at: float | None,
    state: StateName,
    waiting_since: float | None = None,
) -> IncidentData:
    """Return the incident of one finding, ready for `json.dumps`. Pure function.

    Args:
        run_id: `identity.run_id` of the run; together with ``finding.key`` it makes the incident's id.
        started_at, detected_at: Unix seconds: when the fault began, when it was seen; None: unknown.
        waiting_since: Unix seconds: since when the longest waiting rank waits; None: no rank waits, or it is unknown.

    Returns:
        exactly the keys `FIELDS`. ``process_group`` is None if the fault shows in no group; ``caused_by`` is the id of
            the incident that this one follows from, or None.
    """
    group = finding.group
    return {
        "id": identity.incident_id(run_id, finding.key),
        "job": job,
        "attempt": attempt,
        "category": finding.category.value,
        "rule": finding.rule,
        "process_group": None
        if group is None
        else {"id": group.id, "name": group.name, "description": group.description, "ranks": list(group.ranks)},
        "operation": finding.operation or None,
        "sequence_id": finding.sequence_id,
        "culprit_ranks": sorted(finding.culprit_ranks),
        "waiting_ranks": sorted(finding.waiting_ranks),
        "field": finding.field,
        "values": _by_rank(finding.values),
        "stuck_on": finding.stuck_on,
        "call_sites": _by_rank(finding.call_sites),
        "stacks": _by_rank(finding.stacks),
        "stack_groups": [{"ranks": list(ranks), "frames": list(frames)} for ranks, frames in finding.stack_groups],
        "caused_by": None if finding.caused_by is None else identity.incident_id(run_id, finding.caused_by),
        "trace_id": trace_id(run_id, finding),
        "started_at": timestamp(started_at),
        "detected_at": timestamp(detected_at),
        "state": state,
        "summary": finding.summary,
        "details": list(finding.details),
        "waiting_since": timestamp(waiting_since),
        "places": {str(rank): place_data(place) for rank, place in sorted(finding.places.items())},
    }


def waiting_since_text(data: IncidentData) -> str:
    """``"since 14:03:12 UTC"``, with the date if that is not the day of detection; "": no rank waits."""
    return _since_text(data["waiting_since"], data["detected_at"] or "")


def _since_text(since: str | None, detected: str) -> str:
    if since is None:
        return ""
    day, moment = since[:10], since[11:19]
    return f"since {moment} UTC" if detected.startswith(day) else f"since {day} {moment} UTC"


def told(data: IncidentData) -> str:
    """Return the summary and since when ranks wait or are slow, for texts that are read later."""
    since, summary = waiting_since_text(data), data["summary"]
    if since:
        summary = with_wait(summary, since)
    elif is_slowness(data) and (since := _since_text(data["started_at"], data["detected_at"] or "")):
        summary = f"{summary} ({since})"
    return state_summary(summary, data["state"])


def is_slowness(data: IncidentData) -> bool:
    """Return `Finding.is_slowness` of the incident's finding."""
    return data["category"] == Category.STRAGGLER.value and data["sequence_id"] is None


def told_now(data: IncidentData | IncidentHead, now: float) -> str:
    """Return the summary and, while it fires, how long ranks have waited by ``now`` (Unix time), for live texts."""
    since = unix(data["waiting_since"])
    if since is None or data["state"] != "firing":
        return state_summary(data["summary"], data["state"])
    return with_wait(data["summary"], f"for {duration_text(max(0.0, now - since))}")


def machines_of(data: IncidentData) -> list[str]:
    """Return the known machines of its culprits."""
    places = data["places"]
    own = [places[str(rank)] for rank in data["culprit_ranks"] if str(rank) in places]
    return list(dict.fromkeys(name for place in own if (name := place["node"] or place["host"])))


def place_data(place: Place) -> PlaceData:
    """Return where a rank runs, as JSON."""
    return {
        "host": place.host or None,
        "pid": place.pid,
        "local_rank": place.local_rank,
        "gpu": place.gpu or None,
        "pod": place.pod or None,
        "node": place.node or None,
        "namespace": place.namespace or None,
    }


def _by_rank(values: dict[int, str]) -> dict[str, str]:
    return {str(rank): values[rank] for rank in sorted(values)}
