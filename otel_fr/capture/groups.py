"""The process groups of this process, and the numbers that PyTorch gives their collectives."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any, Final

from otel_fr import identity
from otel_fr.capture import split_groups
from otel_fr.capture.torch_version import release
from otel_fr.ring import GroupDef
from otel_fr.ring.layout import UNPAIRED

_log = logging.getLogger("otel_fr")

MAX_PAIRS: Final = 65_536
"""Most counters of (direction, peer, tag) that are kept for one group: a job may use a new tag for each message."""
ANY: Final = -1
"""The peer of a receive from any source."""

_generations: dict[tuple[str, tuple[int, ...]], int] = {}
"""How many groups with this name and these ranks the process has created in this run. Kept across recordings."""


_first_rank = 0
"""Added to torch's rank number to get the rank in the run: with torchft, torch has a rank 0 in each replica."""


def set_first_rank(rank: int) -> None:
    """Set the rank in the run of torch's rank 0."""
    global _first_rank
    _first_rank = rank


def in_run(ranks: Iterable[int]) -> tuple[int, ...]:
    """Convert torch's rank numbers to ranks in the run."""
    return tuple([_first_rank + rank for rank in ranks])


def forget_created() -> None:
    """Count groups from 0 again, because another run begins: a process that is new in the run also counts from 0."""
    _generations.clear()


_batch_numbers = itertools.count(1)


class Batch(list[Any]):
    """Replaces the empty list that a coalescing manager keeps for its group, so that batches can be distinguished. A
    list's only identity is its address, which the next batch may reuse."""

    __slots__ = ("coll_seq", "number", "p2p_seq")

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.number = next(_batch_numbers)
        self.coll_seq = 0
        self.p2p_seq = 0


def name_of(group: Any) -> str:
    """Return c10d's name of a ``ProcessGroup``, or "" for a group of a Python class, which has no backend and no name.

    torch calls the methods of such a group directly, so its calls do not reach the operators and are not recorded.
    """
    try:
        return str(group.group_name)
    except RuntimeError:
        return ""


def batch_in(batches: dict[Any, Any], name: str) -> Batch | None:
    """Return the batch that is open in the group ``name``, or None.

    Args:
        batches: torch's lists of open batches, by ``ProcessGroup``.
    """
    for group, batch in list(batches.items()):
        if name_of(group) == name:
            if type(batch) is not Batch:
                batch = batches[group] = Batch(batch)
            return batch
    return None


class LiveGroup:
    """A live process group and its counters. Holds no reference to objects of torch.

    Attributes:
        index: the group's index in the ring; -1: not defined yet.
        coll, p2p, op, monitored: last number assigned in each sequence.
        created: last number of the group's calls that create groups. If only members create this group, its creation
            is call 1.
        splits: number of calls that split this group without a description.
        ranks: members' ranks in the run, in group order; empty: unknown.
    """

    def __init__(self, name: str, size: int, rank: int) -> None:
        self.name = name
        self.size = size
        self.rank = rank
        self.index = -1
        self.ranks: tuple[int, ...] = ()
        self.coll = 0
        self.p2p = 0
        self.op = 0
        self.monitored = 0
        self.created = 0
        self.splits = 0
        self.pairs: dict[tuple[int, int, int], int] = {}
        self.backends: dict[str, tuple[str, int]] = {}

    def next_pair_index(self, pair: tuple[int, int, int]) -> int:
        """Return how many calls of ``pair`` (`CallKind.pair`) came before this one.

        Returns `UNPAIRED` for a receive that names its sender if an earlier receive from any source had this tag. That
        receive may have taken a message of this sender.
        """
        receives, peer, tag = pair
        pairs = self.pairs
        if receives and peer >= 0 and (receives, ANY, tag) in pairs:
            return UNPAIRED
        index = pairs.get(pair, 0)
        if not index and len(pairs) >= MAX_PAIRS:
            # Drop the oldest half. Both ends of a pair use their tags in the same order, so both drop the same tags.
            for old in list(pairs)[: MAX_PAIRS // 2]:
                del pairs[old]
        pairs[pair] = index + 1
        return index

    def global_rank(self, rank: int) -> int:
        """Return the rank in the run of a rank of this group; the same number if the members are unknown."""
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else rank


def member_ranks(c10d: ModuleType, group: Any) -> tuple[int, ...] | None:
    """Return the ranks of a ``ProcessGroup`` in the run, or None while torch does not know them.

    When torch registers a group, it has not stored the members yet, but has passed them to most backends.
    """
    ranks = torch_ranks(c10d, group)
    return None if ranks is None else in_run(ranks)


def torch_ranks(c10d: ModuleType, group: Any) -> tuple[int, ...] | None:
    """Like `member_ranks`, with torch's rank numbers."""
    world = c10d._world
    mapping = world.pg_group_ranks.get(group)
    if mapping:
        return tuple(rank for rank, _ in sorted(mapping.items(), key=lambda item: item[1]))
    split = split_groups.ranks_of(group)
    if split is not None:
        return split
    if world.default_pg is None:
        return tuple(range(group.size()))
    for device in group._device_types:
        ranks = getattr(getattr(group._get_backend(device), "options", None), "global_ranks_in_group", None)
        if ranks and len(ranks) == group.size():
            return tuple(ranks)
    return None


def backend_of(c10d: ModuleType, group: Any, device: Any) -> tuple[str, int]:
    """Return the name and default timeout in ms of the backend that serves a ``torch.device`` in a group.

    If the backend cannot be queried, return torch's name for the group's backend, and 0.
    """
    try:
        backend = group._get_backend(device)
        timeout = getattr(getattr(backend, "options", None), "_timeout", None)
        return str(backend.name()).lower(), milliseconds(timeout)
    except Exception:  # noqa: BLE001 - a third-party backend
        entry = c10d._world.pg_map.get(group)
        return (str(entry[0]).lower() if entry else "unknown"), 0


def milliseconds(timeout: object) -> int:
    """Return a ``timedelta`` in ms; 0 for any other value."""
    return round(timeout / timedelta(milliseconds=1)) if isinstance(timeout, timedelta) else 0


def describe(c10d: ModuleType, group: Any, name: str, ranks: tuple[int, ...], local_id: int) -> GroupDef:
    """Return the ring's definition of a ``ProcessGroup``. Each call counts as one creation of the group.

    Source of `GroupDef.is_serial`: a group that is bound to a device connects eagerly, and ProcessGroupNCCL then warns
    that "unbatched P2P ops are treated as independent collective ops, and are thus serialized with all other ops".
    Before torch 2.8, each pair of ranks had a communicator of its own (https://github.com/pytorch/pytorch/issues/152220).
    """
    found = definition_of(name, str(group.group_desc), ranks, backends_of(c10d, group), local_id)
    is_shared = release() >= (2, 8)
    return replace(found, is_serial=is_shared and getattr(group, "bound_device_id", None) is not None)


def backends_of(c10d: ModuleType, group: Any) -> set[str]:
    """Return the names of the backends of a ``ProcessGroup``."""
    return {backend_of(c10d, group, device)[0] for device in group._device_types}


def definition_of(
    name: str, description: str, ranks: tuple[int, ...], backends: Iterable[str], local_id: int
) -> GroupDef:
    """Return the ring's definition of a group. Each call counts as one creation of the group."""
    key = (name, ranks)
    generation = _generations.get(key, 0)
    _generations[key] = generation + 1
    return GroupDef(
        id=identity.group_id(name, ranks, generation),
        name=name,
        description=description,
        ranks=ranks,
        backend=",".join(sorted(set(backends))) or "unknown",
        local_id=local_id,
    )
