"""Evidence made by hand for the match engine, with defaults for values that do not matter to a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from otel_fr.identity import Stream
from otel_fr.match import Call, CallState, Category, Evidence, Finding, Group, Progress, Rank, Signature, diagnose
from tests.support.verdicts import causes

WINDOW = 2.0
"""Seconds after which a call in flight counts as waiting."""
LONG = 9.0
"""Default age of a call in flight, and default idle time of a rank, in seconds."""

FLOAT = ("Float",)
SUM = Signature("all_reduce", ((4,),), ((4,),), FLOAT, FLOAT, "sum")
MAX = SUM._replace(reduce_op="max")
LARGE = SUM._replace(input_sizes=((8,),), output_sizes=((8,),))
BROADCAST = Signature("broadcast", ((4,),), ((4,),), FLOAT, FLOAT)
BARRIER = Signature("barrier")


def world(size: int) -> Group:
    """The default group."""
    return Group("w", "0", "default_pg", tuple(range(size)))


WORLD = world(3)


def call(
    rank: int,
    number: int = 5,
    state: CallState = CallState.IN_FLIGHT,
    signature: Signature = SUM,
    *,
    group: Group | str = WORLD,
    stream: Stream = "collective",
    **more: Any,
) -> Call:
    """Return a rank's call in the group's collective of that number."""
    fields = {"record": number, "age": None if state is CallState.COMPLETED else LONG, **more}
    id_ = group if isinstance(group, str) else group.id
    return Call(rank=rank, group=id_, stream=stream, sequence_id=number, signature=signature, state=state, **fields)


def message(
    rank: int,
    operation: str,
    peer: int | None,
    number: int = 1,
    state: CallState = CallState.IN_FLIGHT,
    *,
    tag: int = 0,
    length: int = 4,
    **more: Any,
) -> Call:
    """Return a send to ``peer`` or a receive from it, recorded after all collectives. None: from any source."""
    sizes = ((length,),)
    signature = Signature(operation, sizes, sizes, FLOAT, FLOAT, peer=peer, tag=tag, any_source=peer is None)
    return call(rank, number, state, signature, stream="p2p", **{"record": 100 + number, **more})


def rank(
    number: int,
    reached: int | None = None,
    done: int | None = None,
    *,
    counts: Mapping[str, tuple[int | None, int | None]] | None = None,
    **more: Any,
) -> Rank:
    """Return a rank that has enqueued ``reached`` collectives of the default group.

    Args:
        reached: None: it has not used the group.
        done: how many have completed; None: all.
        counts: other groups, by id: (enqueued, completed).
    """
    progress = {} if reached is None else {"w": Progress(reached, reached if done is None else done)}
    progress |= {id_: Progress(*own) for id_, own in (counts or {}).items()}
    return Rank(number, **{"idle": LONG, "progress": progress, **more})


def judge(
    calls: Iterable[Call], ranks: Iterable[Rank], groups: Iterable[Group] = (WORLD,), world_size: int | None = None
) -> list[Finding]:
    """Return the engine's findings."""
    by_id, by_rank = {group.id: group for group in groups}, {rank.rank: rank for rank in ranks}
    return diagnose(Evidence(groups=by_id, calls=list(calls), ranks=by_rank, window=WINDOW, world_size=world_size))


def verdict(calls: Iterable[Call], ranks: Iterable[Rank], *groups: Group, size: int = 3) -> list[Finding]:
    """Return the engine's findings in a job of ``size`` ranks. ``groups``: besides the default group.

    Ranks' counts of completed collectives are lowered to fit their calls that have not ended.
    """
    calls, by_rank = list(calls), {info.rank: info for info in ranks}
    for one in calls:
        progress = by_rank[one.rank].progress.get(one.group) if one.rank in by_rank else None
        is_open = one.stream == "collective" and one.state is not CallState.COMPLETED
        if progress is not None and progress.completed is not None and is_open:
            progress.completed = min(progress.completed, one.sequence_id - 1)
    return judge(calls, by_rank.values(), (world(size), *groups), size)


def cause(calls: Iterable[Call], ranks: Iterable[Rank], *groups: Group, size: int = 3) -> Finding:
    """Return the only cause."""
    (found,) = causes(verdict(calls, ranks, *groups, size=size))
    return found


def blamed(
    calls: Iterable[Call], ranks: Iterable[Rank], *groups: Group, size: int = 3
) -> list[tuple[Category, tuple[int, ...]]]:
    """Return the category and the culprits of each cause."""
    found = causes(verdict(calls, ranks, *groups, size=size))
    return [(finding.category, finding.culprit_ranks) for finding in found]


def finding(category: Category = Category.MISSING_RANK, **changed: Any) -> Finding:
    """Return a finding as the engine makes it: rank 1 has not joined all_reduce number 5; ranks 0 and 2 wait in it."""
    fields: dict[str, Any] = {
        "key": "w/collective/5", "rule": "absent_rank",
        "group": WORLD, "operation": "all_reduce", "sequence_id": 5, "stream": "collective",
        "culprit_ranks": (1,), "waiting_ranks": (0, 2), "summary": "rank 1 did not join; ranks 0, 2 wait",
    }  # fmt: skip
    return Finding(category=category, **{**fields, **changed})


NO_CALL: Mapping[str, Any] = {"group": None, "operation": "", "sequence_id": None}
"""Fields of a finding that no call shows."""
