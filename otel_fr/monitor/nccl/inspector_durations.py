"""Keeps durations from NCCL Inspector until their calls are known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from otel_fr.dumps import nccl_calls
from otel_fr.dumps.nccl_inspector import GPU_CLOCK, DeviceCall
from otel_fr.ring import GroupDef, SignatureDef

MAX_WAITING: Final = 50_000
"""How many durations are kept between two requests of metrics: 3,000 calls a second at the default interval."""
MAX_KINDS: Final = 4_096
"""How many kinds of calls, and how many groups, are remembered."""

_BACKENDS: Final = "nccl"
"""Prefix of the names of c10d backends that call NCCL: ``nccl`` and, since torch 2.14, ``nccl2``."""

S = TypeVar("S")
Kind = tuple[str, str, int]
"""Group id, NCCL's function as `DeviceCall.operation`, and bytes as NCCL counts them."""
Place = tuple[int, int, str]
"""A rank's place in a communicator: the communicator's size, the rank's number in it, and the communicator's name."""


class InspectorDurations(Generic[S]):
    """The durations of one rank's calls.

    A duration belongs to the series of its group's calls that make the same NCCL call with as many bytes. The group is
    the one with as many members and this rank in the same position. If there are several such groups, the
    communicator's name decides. Durations of calls whose group or series is unknown are not counted.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._groups: dict[str, GroupDef] = {}
        self._series: dict[Kind, S] = {}
        self._waiting: dict[tuple[Place, str, int], list[float]] = {}
        self._room = MAX_WAITING

    def know(self, group: GroupDef, signature: SignatureDef, series: S) -> None:
        """Note that the rank has made a call with this signature in this group."""
        if not signature.backend.startswith(_BACKENDS) or signature.truncated or not group.ranks:
            return
        if len(self._series) >= MAX_KINDS or len(self._groups) >= MAX_KINDS:
            self._series.clear()
            self._groups.clear()
        self._groups[group.id] = group
        for operation, size in nccl_calls.of_signature(signature):
            if size is not None:
                self._series[group.id, operation, size] = series

    def note(self, call: DeviceCall) -> None:
        """Note that the device has executed a call."""
        if call.source in (GPU_CLOCK, "") and self._room > 0:
            of = call.communicator
            self._waiting.setdefault(((of.size, of.rank, of.name), call.operation, call.size), []).append(call.seconds)
            self._room -= 1

    def take(self) -> Iterator[tuple[S, list[float]]]:
        """Yield the durations whose series are known by now. Forget the others if there are too many."""
        for kind in list(self._waiting):
            place, operation, size = kind
            group = self._group(place)
            series = None if group is None else self._series.get((group.id, operation, size))
            if series is None:
                continue
            durations = self._waiting.pop(kind)
            self._room += len(durations)
            yield series, durations
        if self._room <= MAX_WAITING // 2:
            self._waiting.clear()
            self._room = MAX_WAITING

    def _group(self, place: Place) -> GroupDef | None:
        size, position, name = place
        fitting = [
            group
            for group in self._groups.values()
            if len(group.ranks) == size and position < size and group.ranks[position] == self._rank
        ]
        named = [group for group in fitting if name and name in (group.name, group.description)]
        return (named or fitting)[0] if len(named or fitting) == 1 else None
