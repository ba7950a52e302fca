"""Incidents and runs as plain dicts for the database, and back. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from otel_fr.incident import CollectorIncidentData
from otel_fr.match import Category, Ending, Finding, Group, ThreadException
from otel_fr.typed_json import typed
from otel_fr_collector.incidents.book import Incident
from otel_fr_collector.jobs.ranks import DESTROYED, RankState
from otel_fr_collector.jobs.run import Run, RunId

_T = TypeVar("_T")
Json = dict[str, Any]

MAX_STACKS = 64
"""Ranks of a run whose stacks are kept: those of the culprits are in the incident anyway."""

_RANK_FIELDS = ("host", "stack", "site", "python_blocked", "exit_code", "signal", "exception", "exception_site", "file")


@dataclass(frozen=True)
class SavedRun:
    """What is kept of a run with open incidents: how its ranks ended and their stacks, which are sent only once.

    Attributes:
        at: Unix time at which it was written down.
    """

    id: RunId
    at: float
    world_size: int | None
    resource: dict[str, str]
    ranks_data: list[Json]

    def ranks(self, now: float, wall: float) -> list[RankState]:
        """The ranks that are remembered, as of these monotonic and Unix times.

        Raises:
            ValueError, KeyError, TypeError: not what `dump_run` has written.
        """
        age = max(0.0, wall - self.at)
        states = []
        for item in self.ranks_data:
            ending = Ending(item["ending"])
            ended = now - age if item["ended"] else None
            destroyed = set(item.get("destroyed", ()))
            state = RankState(
                rank=int(item["rank"]),
                arrived=now - age,
                ended=ended,
                ending=ending,
                stack_arrived=now - age - float(item["stack_age"]),
                thread_exceptions=tuple([ThreadException(*item) for item in item.get("thread_exceptions", ())]),
                progress={
                    str(group): [int(own[0]), int(own[1]), DESTROYED if group in destroyed else 0]
                    for group, own in item["standings"].items()
                },
                **{name: item[name] for name in _RANK_FIELDS},
            )
            states.append(state)
        return states


def dump_run(run: Run, now: float, wall: float) -> Json:
    """A run at these monotonic and Unix times, ready for `json.dumps`: its ranks that ended or left a trace."""
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
            "stack_age": max(0.0, now - state.stack_arrived),
        }
        ranks.append(item)
    return {"id": _run_id(run.id), "at": wall, "world_size": run.world_size, "resource": run.resource, "ranks": ranks}


def load_run(data: Json) -> SavedRun:
    """The inverse of `dump_run`.

    Raises:
        ValueError, KeyError, TypeError: it is of another form.
    """
    saved = SavedRun(
        RunId(*data["id"]), float(data["at"]), data["world_size"], dict(data["resource"]), list(data["ranks"])
    )
    saved.ranks(0.0, 0.0)
    return saved


def dump_incident(incident: Incident) -> Json:
    """What is known of an incident beyond its ``data``, ready for `json.dumps`."""
    finding = dataclasses.asdict(incident.finding)
    finding["category"] = incident.finding.category.value
    return {
        "id": incident.id,
        "run": _run_id(incident.run),
        "finding": finding,
        "keys": incident.keys,
        "cause": incident.cause,
        "detected": incident.detected,
        "started": incident.started,
        "changed": incident.changed,
        "resolved": incident.resolved,
        "revision": incident.revision,
        "state": incident.state,
        "files": incident.files,
        "labels": incident.labels,
    }


def load_incident(data: Json, published: object) -> Incident:
    """The inverse of `dump_incident`; ``opened`` is 0. ``published``: the incident's ``data``.

    Raises:
        ValueError, KeyError, TypeError: it is of another form.
    """
    incident = Incident(
        id=str(data["id"]),
        run=RunId(*data["run"]),
        finding=_finding(data["finding"]),
        keys=[str(key) for key in data["keys"]],
        cause=data["cause"],
        opened=0.0,
        detected=float(data["detected"]),
        started=data["started"],
        changed=float(data["changed"]),
        resolved=data["resolved"],
        revision=int(data["revision"]),
        state=str(data["state"]),
        files=_by_rank(data["files"], str),
        labels={str(name): str(value) for name, value in data["labels"].items()},
    )
    incident.data = typed(CollectorIncidentData, published)
    return incident


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
            "ended_ranks": tuple(data.get("ended_ranks", ())),
            "values": _by_rank(data["values"], str),
            "call_sites": _by_rank(data["call_sites"], str),
            "stacks": _by_rank(data["stacks"], str),
            "p2p": None if p2p is None else (int(p2p[0]), int(p2p[1]), int(p2p[2]), int(p2p[3])),
        }
    )


def _by_rank(values: Mapping[str, object], kind: Callable[[object], _T]) -> dict[int, _T]:
    return {int(rank): kind(value) for rank, value in values.items()}


def _run_id(run: RunId) -> list[object]:
    return [run.job, run.attempt, run.run]
