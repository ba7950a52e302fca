"""Converts incidents and runs to plain dicts for the database, and back. Pure functions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, cast

from otel_fr.incident import CollectorIncidentData, StateName, timestamp
from otel_fr.match import Category, Ending, Finding, Group, Place, StackGroup, ThreadException
from otel_fr.rank_report import MAX_NUMBER
from otel_fr.typed_json import typed
from otel_fr_collector.incidents.incident import FIRING, RESOLVED, Incident
from otel_fr_collector.incidents.resolution import Resolution
from otel_fr_collector.jobs.ranks import DESTROYED, RankState
from otel_fr_collector.jobs.ras import RasAnswer
from otel_fr_collector.jobs.run import Run, RunId

_T = TypeVar("_T")
Json = dict[str, Any]

MAX_STACKS = 64
"""Ranks of a run whose stacks are kept. The culprits' stacks are in the incident anyway."""

_RANK_FIELDS = (
    "stack",
    "stack_moves",
    "site",
    "python_blocked",
    "exit_code",
    "signal",
    "exception",
    "exception_site",
    "file",
)
_TRACE_ID = re.compile("[0-9a-f]{32}")


class _RunData(TypedDict):
    """The JSON of a `SavedRun`. ``id``: job, attempt and run."""

    id: list[Any]
    at: float
    world_size: int | None
    resource: dict[str, str]
    ranks: list[_RankData]


class _RankData(TypedDict):
    """The JSON of a `RankState`. ``ended``: whether the rank has ended; ``standings``: its progress by group."""

    rank: int
    ended: bool
    ending: str
    standings: dict[str, list[int]]
    stack_moves: int
    host: str
    stack: str
    site: str
    python_blocked: bool
    exit_code: int | None
    signal: int | None
    exception: str
    exception_site: str
    file: str
    thread_exceptions: list[list[str]] | None
    destroyed: list[str] | None
    is_exiting: bool | None
    exit_message: str | None
    exit_site: str | None
    kill_reason: str | None
    ended_for_peer: bool | None
    place: list[Any] | None


@dataclass(frozen=True)
class SavedRun:
    """A run with open incidents as it is stored: how its ranks ended, and their stacks, which are sent only once.

    Attributes:
        at: Unix time at which the run was saved.
    """

    id: RunId
    at: float
    world_size: int | None
    resource: dict[str, str]
    ranks_data: list[_RankData]

    def ranks(self, now: float, wall: float) -> list[RankState]:
        """The saved ranks. ``now``, ``wall``: the monotonic and Unix time now.

        Raises:
            ValueError, IndexError, TypeError: `dump_run` did not write the data.
        """
        age = max(0.0, wall - self.at)
        states = []
        for item in self.ranks_data:
            ending = Ending(item["ending"])
            destroyed = set(item.get("destroyed") or ())
            state = RankState(
                rank=item["rank"],
                arrived=now - age,
                ended=now - age if item["ended"] else None,
                ending=ending,
                thread_exceptions=tuple([ThreadException(*one) for one in item.get("thread_exceptions") or ()]),
                progress={
                    group: [min(one, MAX_NUMBER), min(two, MAX_NUMBER), DESTROYED if group in destroyed else 0, 0, -1]
                    for group, (one, two, *_) in item["standings"].items()
                },
                is_exiting=bool(item["is_exiting"]),
                exit_message=item["exit_message"] or "",
                exit_site=item["exit_site"] or "",
                kill_reason=item["kill_reason"] or "",
                ended_for_peer=bool(item["ended_for_peer"]),
                place=_place(item["place"]) if item["place"] else Place(item["host"]),
                **{name: cast("Json", item)[name] for name in _RANK_FIELDS},
            )
            states.append(state)
        return states


def dump_run(run: Run, now: float, wall: float) -> Json:
    """A run as JSON: the ranks that have ended, raised in a thread or sent a stack.

    Args:
        now, wall: the monotonic and Unix time now.
    """
    ranks = []
    stacks = 0
    for state in run.ranks.values():
        stacks += bool(state.stack)
        if state.ended is None and not state.thread_exceptions and (not state.stack or stacks > MAX_STACKS):
            continue
        item: Json = {name: getattr(state, name) for name in _RANK_FIELDS}
        if stacks > MAX_STACKS:
            item["stack"] = ""
        item |= {
            "rank": state.rank,
            "ended": state.ended is not None,
            "ending": state.ending.value,
            "thread_exceptions": state.thread_exceptions,
            "standings": {group: own[:2] for group, own in state.progress.items()},
            "destroyed": [group for group in state.progress if state.has_destroyed(group)],
            "is_exiting": state.is_exiting,
            "exit_message": state.exit_message,
            "exit_site": state.exit_site,
            "kill_reason": state.kill_reason,
            "ended_for_peer": state.ended_for_peer,
            "host": state.host,
            "place": state.place,
        }
        ranks.append(item)
    return {
        "id": dump_run_id(run.id),
        "at": wall,
        "world_size": run.world_size,
        "resource": run.resource,
        "ranks": ranks,
    }


def load_run(data: Json) -> SavedRun:
    """The inverse of `dump_run`.

    Raises:
        ValueError, TypeError, IndexError: the data has another form.
    """
    known = typed(_RunData, data)
    saved = SavedRun(load_run_id(known["id"]), known["at"], known["world_size"], known["resource"], known["ranks"])
    saved.ranks(0.0, 0.0)
    return saved


def dump_incident(incident: Incident) -> Json:
    """An incident as JSON, without its ``data``."""
    finding = dataclasses.asdict(incident.finding)
    finding["category"] = incident.finding.category.value
    return {
        "id": incident.id,
        "run": dump_run_id(incident.run),
        "finding": finding,
        "keys": incident.keys,
        "cause": incident.cause,
        "detected": incident.detected,
        "alert_after": incident.alert_after,
        "started": incident.started,
        "changed": incident.changed,
        "resolved": incident.resolved,
        "resolution": None if incident.resolution is None else incident.resolution.value,
        "revision": incident.revision,
        "openings": incident.openings,
        "changes": incident.changes,
        "state": incident.state,
        "files": incident.files,
        "labels": incident.labels,
        "waiting": incident.waiting,
        "job_title": incident.job_title,
        "ras": incident.ras,
    }


def load_incident(data: Json, published: object) -> Incident:
    """The inverse of `dump_incident`; ``opened`` is 0. ``published``: the incident's ``data``.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the data has another form.
    """
    incident = Incident(
        id=str(data["id"]),
        run=load_run_id(data["run"]),
        finding=_finding(data["finding"]),
        keys=[str(key) for key in data["keys"]],
        cause=data["cause"],
        opened=0.0,
        detected=float(data["detected"]),
        started=data["started"],
        alert_after=float(data["alert_after"]),
        changed=float(data["changed"]),
        resolved=data["resolved"],
        resolution=Resolution(why) if (why := data.get("resolution")) is not None else None,
        revision=int(data["revision"]),
        openings=int(data["openings"]),
        changes=int(data["changes"]),
        state=cast("StateName", data["state"]),
        files=_by_rank(data["files"], str),
        waiting=data["waiting"],
        ras=_ras(data["ras"]),
        job_title=str(data["job_title"]),
        labels={str(name): str(value) for name, value in data["labels"].items()},
    )
    typed(CollectorIncidentData, incident.data)
    for seconds in (incident.detected, incident.started, incident.changed, incident.resolved, incident.waiting):
        if seconds is not None and timestamp(seconds) is None:
            raise ValueError("one of its times is invalid")
    if incident.state not in (FIRING, RESOLVED) or type(incident.finding.age) not in (float, int, type(None)):
        raise ValueError("its state or its age is invalid")
    incident.data = typed(CollectorIncidentData, published)
    incident.culprits = incident.data["culprits"]
    trace = incident.data["trace_id"]
    if trace is not None and _TRACE_ID.fullmatch(trace) is None:
        raise ValueError("its trace id is invalid")
    return incident


def load_run_id(data: object) -> RunId:
    """The inverse of `dump_run_id`.

    Raises:
        ValueError: the data has another form.
    """
    match data:
        case [str() as job, int() as attempt, str() as run]:
            return RunId(job, attempt, run)
    raise ValueError("a run is its job, attempt and run id")


def _finding(data: Json) -> Finding:
    group = data["group"]
    p2p = data["p2p"]
    return Finding(
        **{
            **data,
            "category": Category(data["category"]),
            "group": None if group is None else Group(**{**group, "ranks": tuple(group["ranks"])}),
            "culprit_ranks": tuple(data["culprit_ranks"]),
            "waiting_ranks": tuple(data["waiting_ranks"]),
            "ended_ranks": tuple(data["ended_ranks"]),
            "details": tuple(map(str, data["details"])),
            "differed": tuple(map(str, data["differed"])),
            "places": {int(rank): _place(place) for rank, place in data["places"].items()},
            "values": _by_rank(data["values"], str),
            "call_sites": _by_rank(data["call_sites"], str),
            "stacks": _by_rank(data["stacks"], str),
            "stack_groups": tuple([StackGroup(tuple(r), tuple(f)) for r, f in data["stack_groups"]]),
            "p2p": None if p2p is None else (int(p2p[0]), int(p2p[1]), int(p2p[2]), int(p2p[3])),
        }
    )


def _ras(data: object) -> RasAnswer | None:
    match data:
        case None:
            return None
        case [int() | float() as asked, str() as version, [*lines]] if timestamp(asked) is not None:
            return RasAnswer(asked, version, tuple(map(str, lines)))
    raise ValueError("an answer of RAS is when it was asked, NCCL's version and lines")


def _place(data: Sequence[Any]) -> Place:
    match [*data, ""][: len(Place._fields)]:  # earlier versions wrote no namespace
        case [str() as host, int() | None as pid, int() | None as local, *names] if set(map(type, names)) == {str}:
            return Place(host, pid, local, *names)
    raise ValueError("a place is a host, a pid, a local rank, a GPU, a pod, a node and a namespace")


def _by_rank(values: Mapping[str, object], kind: Callable[[object], _T]) -> dict[int, _T]:
    return {int(rank): kind(value) for rank, value in values.items()}


def dump_run_id(run: RunId) -> list[object]:
    """A run's identity as JSON."""
    return [run.job, run.attempt, run.run]
