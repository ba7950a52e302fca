"""Lists of incidents, as the API gives them: causes with the number of their consequences, or all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from otel_fr.identity import encode_ranks
from otel_fr.incident import CollectorIncidentData
from otel_fr_collector.incidents.bounds import MAX_CULPRITS
from otel_fr_collector.incidents.incident import Incident
from otel_fr_collector.storage.backend import StoreError
from otel_fr_collector.storage.store import SETTLE_SECONDS, Store

MAX_BYTES = 4 * 1024 * 1024
"""Largest list of incidents, unless it has one only: one of 4,096 ranks takes 200 kB."""
MAX_READ = 8 * MAX_BYTES
"""Of the incidents of a brief list, from which most is left out."""


class Query(NamedTuple):
    """Which incidents are listed. ``before``: detected before this Unix time; ``folded``: without consequences."""

    job: str | None
    state: str | None
    before: float | None
    limit: int
    folded: bool


Counted = list[tuple[CollectorIncidentData, int]]
"""Incidents, oldest first, each with the number of its consequences."""


def stored(store: Store, query: Query, prefix: str, max_size: int) -> Counted:
    """The incidents of the database that a query asks for. Run in a thread.

    Raises:
        StoreError: the database cannot be read, or lacks incidents that are in memory.
    """
    if not store.settled(SETTLE_SECONDS):
        raise StoreError("the newest incidents are in memory only")
    found = store.find(**query._asdict(), prefix=prefix, max_size=max_size)
    return list(zip(found, store.count_consequences(found), strict=True))


def stored_consequences(store: Store, incident: CollectorIncidentData) -> list[str]:
    """The ids of the incidents of the database that follow from one, oldest first. Run in a thread.

    Raises:
        StoreError: the database cannot be read.
    """
    run = (incident["job"], incident["attempt"], incident["run_id"])
    found = store.find(job=incident["job"], state=None, max_size=MAX_READ)
    return [
        one["id"]
        for one in found
        if one["caused_by"] == incident["id"] and (one["job"], one["attempt"], one["run_id"]) == run
    ]


def remembered(known: Sequence[Incident], query: Query) -> Counted:
    """The incidents in memory that a query asks for."""
    counts = Counter((one.run, one.cause) for one in known)
    fitting = [one for one in known if query.state in (None, one.state) and query.job in (None, one.run.job)]
    shown = {(one.run, one.id) for one in fitting} if query.folded else set()
    found = [
        (one.data, counts[one.run, one.id])
        for one in fitting
        if (one.run, one.cause) not in shown and (query.before is None or one.detected < query.before)
    ]
    return found[-query.limit :]


def listed(found: Counted, brief: bool) -> bytes:
    """The list as JSON; the oldest are left out if it would be larger than `MAX_BYTES`. Run in a thread."""
    texts: list[str] = []
    size = 0
    for incident, count in reversed(found):
        shown = _brief(incident) if brief else incident
        texts.append(json.dumps({**shown, "consequence_count": count}))
        size += len(texts[-1])
        if size > MAX_BYTES and len(texts) > 1:
            texts.pop()
            break
    return f'{{"incidents": [{", ".join(reversed(texts))}]}}'.encode()


def brief_detail(incident: CollectorIncidentData, consequences: int) -> Mapping[str, object]:
    """As in a brief list, with what is known of the first culprits, and who waits, as text.

    Args:
        consequences: how many follow from it.
    """
    first = [str(rank) for rank in incident["culprit_ranks"][:MAX_CULPRITS]]
    sites, stacks = incident["call_sites"], incident["stacks"]
    return {
        **_brief(incident),
        "consequence_count": consequences,
        "call_sites": {rank: sites[rank] for rank in first if rank in sites},
        "stacks": {rank: stacks[rank] for rank in first if rank in stacks},
        "waiting": encode_ranks(sorted(incident["waiting_ranks"])),
    }


def _brief(incident: CollectorIncidentData) -> dict[str, object]:
    """The incident without what grows with the number of ranks that wait."""
    heavy = ("stacks", "call_sites", "values", "flight_recorder_files", "waiting_ranks", "stack_groups", "nccl_ras")
    short = {name: value for name, value in incident.items() if name not in heavy}
    places = incident["places"]
    first = (str(rank) for rank in incident["culprit_ranks"][:MAX_CULPRITS])
    short["places"] = {rank: places[rank] for rank in first if rank in places}
    group = incident["process_group"]
    if group is not None:
        short["process_group"] = {name: value for name, value in group.items() if name != "ranks"}
    return short
