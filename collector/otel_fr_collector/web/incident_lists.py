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
"""Bytes of the largest list of incidents, unless it has only one. An incident of 4,096 ranks takes 200 kB."""
MAX_READ = 8 * MAX_BYTES
"""Characters of JSON that are read for a brief list, which leaves most of them out."""


class Query(NamedTuple):
    """Which incidents to list.

    Attributes:
        before: only incidents that were detected before this Unix time.
        folded: leave out consequences whose cause is listed.
    """

    job: str | None
    state: str | None
    before: float | None
    limit: int
    folded: bool


Counted = list[tuple[CollectorIncidentData, int]]
"""Incidents, oldest first, each with the number of its consequences."""


def stored(store: Store, query: Query, prefix: str, max_size: int) -> Counted:
    """Find the incidents of a query in the database. Run it in a thread.

    Raises:
        StoreError: the database cannot be read, or lacks incidents that are in memory.
    """
    if not store.settled(SETTLE_SECONDS):
        raise StoreError("the newest incidents are in memory only")
    found = store.find(**query._asdict(), prefix=prefix, max_size=max_size)
    return list(zip(found, store.count_consequences(found), strict=True))


def remembered(known: Sequence[Incident], query: Query) -> Counted:
    """Find the incidents of a query in memory."""
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
    """The list as JSON, without the oldest incidents if it is larger than `MAX_BYTES`. Run it in a thread."""
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
    """The incident as in a brief list, with call sites and stacks of the first culprits, and the waiting ranks as text.

    Args:
        consequences: how many consequences the incident has.
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
    """The incident without the fields that grow with the number of waiting ranks."""
    heavy = ("stacks", "call_sites", "values", "flight_recorder_files", "waiting_ranks", "stack_groups", "nccl_ras")
    short = {name: value for name, value in incident.items() if name not in heavy}
    places = incident["places"]
    first = (str(rank) for rank in incident["culprit_ranks"][:MAX_CULPRITS])
    short["places"] = {rank: places[rank] for rank in first if rank in places}
    group = incident["process_group"]
    if group is not None:
        short["process_group"] = {name: value for name, value in group.items() if name != "ranks"}
    return short
