"""How long devices executed calls, from files of NCCL Inspector, joined with the calls of the flight-recorder files.

Host and pid show which rank wrote a file. A communicator belongs to the process group with the same ranks in the same
order. Counting yields a call's sequence number if the rank's file contains all calls of the group. No verdict is based
on this.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from otel_fr.analyze.assemble.runs import Run
from otel_fr.dumps import files, nccl_calls, nccl_inspector
from otel_fr.dumps.columns import COLLECTIVE
from otel_fr.dumps.model import Problem
from otel_fr.dumps.nccl_inspector import Communicator, DeviceCall, InspectorFile
from otel_fr.match import Group
from otel_fr.presentation import count_text, group_text
from otel_fr.sizes import size_text

MAX_BYTES = 128 << 20
"""Bytes read from all files together: the newest part of each. A megabyte holds 2,000 to 5,000 calls."""
LEAST_BYTES = 64 << 10
"""Bytes read from each file even if there are very many."""


class JoinedCall(NamedTuple):
    """One call on one device.

    Attributes:
        rank: global rank. None: not known.
        group: the group that the communicator belongs to. None: not known.
        sequence_id: the collective's sequence number in its group. None: not known.
    """

    call: DeviceCall
    rank: int | None
    group: Group | None
    sequence_id: int | None


@dataclass(slots=True)
class _Time:
    calls: int = 0
    seconds: float = 0.0
    moved: float = 0.0
    """Bus bandwidth times seconds."""

    @property
    def mean(self) -> float:
        return self.seconds / self.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """The calls of one operation and size in one communicator or group.

    Attributes:
        group: None: it is not known which group the communicator belongs to.
        communicator, communicator_name: id and name. Both are "" if the group is known, because a group may have
            several communicators. The name is also "" if there is none.
        members: number of ranks in the communicator.
        ranks: rank -> mean seconds of a call on its device. Ranks are global, or within the communicator if ``group``
            is None.
        bus_bandwidth: bytes per second of the rank with the shortest time. The others waited for it on their devices.
    """

    group: Group | None
    communicator: str
    communicator_name: str
    members: int
    operation: str
    size: int
    calls: int
    seconds: float
    ranks: Mapping[int, float]
    bus_bandwidth: float

    @property
    def text(self) -> str:
        """``"all_reduce of 25.0 MiB in group dp (3): 40 calls, 1.9 ms on average: 1.2 ms (rank 2) to ..."``."""
        name = f"{self.communicator_name} ({self.communicator})" if self.communicator_name else self.communicator
        where = f"communicator {name} of {count_text(self.members, 'rank')}"
        if self.group is not None:
            where = f"group {group_text(self.group.name, self.group.description)}"
        least, most = (choose(self.ranks, key=self.ranks.__getitem__) for choose in (min, max))
        took = f"{short_text(self.ranks[least])} each"
        if len(self.ranks) > 1:
            took += f" on rank {least}, {short_text(self.ranks[most])} on rank {most}"
        speed = f"; bus bandwidth {self.bus_bandwidth / 1e9:.1f} GB/s" if self.bus_bandwidth else ""
        return f"{self.operation} of {size_text(self.size)} in {where}: {count_text(self.calls, 'call')}, {took}{speed}"

    def to_json(self) -> dict[str, Any]:
        """As in ``--format json``."""
        group = self.group
        return {
            "group": None if group is None else group.id,
            "group_name": None if group is None else group.name,
            "group_description": None if group is None else group.description,
            "communicator": self.communicator or None,
            "communicator_name": self.communicator_name or None,
            "members": self.members,
            "operation": self.operation,
            "size_bytes": self.size,
            "calls": self.calls,
            "seconds": self.seconds,
            "mean_s": {str(rank): mean for rank, mean in self.ranks.items()},
            "bus_bandwidth_bytes_per_second": self.bus_bandwidth or None,
        }


@dataclass(slots=True)
class DeviceDurations:
    """What the files of NCCL Inspector show of a run.

    Attributes:
        calls: every call.
        summary: the calls by group or communicator, operation and size, most time first.
        notes: what was left out, as sentences.
    """

    calls: Sequence[JoinedCall] = ()
    summary: Sequence[Durations] = ()
    notes: list[str] = field(default_factory=list)


def read_files(path: Path) -> tuple[list[InspectorFile], list[Problem]]:
    """Read the files of NCCL Inspector in a folder and its subfolders. Also return those that could not be read."""
    found = [file for file in files.find(path, None)[0] if nccl_inspector.is_one(file)]
    room = max(LEAST_BYTES, MAX_BYTES // max(1, len(found)))
    return files.read_each(found, lambda file: nccl_inspector.read_file(file, room))


def durations_of(run: Run | None, read: Sequence[InspectorFile]) -> DeviceDurations:
    """Join the calls of the files to the ranks and groups of a run."""
    processes = {} if run is None else _processes(run)
    used = [call for file in read for call in file.calls]
    others = 0
    if processes:
        mine = [call for call in used if _rank(processes, call.communicator) is not None]
        others, used = len(used) - len(mine), mine
    group_of = {} if run is None else _owners(run, processes, {call.communicator for call in used})
    numbers = {} if run is None else _sequence_ids(run, processes, group_of, used)
    calls = [
        JoinedCall(call, _rank(processes, call.communicator), group_of.get(call.communicator.id), numbers.get(position))
        for position, call in enumerate(used)
    ]
    return DeviceDurations(calls, _summary(calls), list(_notes(read, others)))


_Processes = Mapping[tuple[str, int], int]


def _processes(run: Run) -> _Processes:
    """(host without its domain, pid) -> rank."""
    places = ((rank.rank, rank.place) for rank in run.evidence.ranks.values())
    return {(_short_host(place.host), place.pid): rank for rank, place in places if place.pid is not None}


def _short_host(host: str) -> str:
    return host.partition(".")[0]


def _rank(processes: _Processes, communicator: Communicator) -> int | None:
    return processes.get((_short_host(communicator.host), communicator.pid))


def _owners(run: Run, processes: _Processes, communicators: Iterable[Communicator]) -> dict[str, Group]:
    """Communicator id -> group, if only one group fits. If several groups have the same ranks, the name decides."""
    members: dict[str, dict[int, int]] = defaultdict(dict)
    about: dict[str, Communicator] = {}
    for one in communicators:
        rank = _rank(processes, one)
        if rank is not None:
            members[one.id][one.rank] = rank
            about[one.id] = one
    found: dict[str, Group] = {}
    for id_, ranks in members.items():
        one = about[id_]
        fitting = [
            group
            for group in run.evidence.groups.values()
            if len(group.ranks) == one.size and all(group.ranks[at] == rank for at, rank in ranks.items())
        ]
        named = [group for group in fitting if one.name and one.name in (group.name, group.description)]
        if len(named or fitting) == 1:
            found[id_] = (named or fitting)[0]
    return found


def _sequence_ids(
    run: Run, processes: _Processes, group_of: Mapping[str, Group], calls: Sequence[DeviceCall]
) -> dict[int, int]:
    """Position in ``calls`` -> sequence number, for ranks whose file has every call of the group.

    The sizes of all calls must agree, because NCCL also counts replays of CUDA graphs, which the file does not contain.
    """
    communicators = Counter(group.id for group in group_of.values())
    of_rank = {(dump.rank, id_): (dump, key) for dump in run.dumps for key, id_ in run.ids[dump.rank].items()}
    streams: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for position, call in enumerate(calls):
        group, rank = group_of.get(call.communicator.id), _rank(processes, call.communicator)
        if group is not None and rank is not None and communicators[group.id] == 1:
            streams[rank, group.id, call.operation].append(position)
    found: dict[int, int] = {}
    expected: dict[tuple[int, str], dict[str, list[tuple[int, int | None]]]] = {}
    for (rank, id_, operation), positions in streams.items():
        if (rank, id_) not in of_rank:
            continue
        if (rank, id_) not in expected:
            dump, key = of_rank[rank, id_]
            is_whole = dump.groups[key].first_recorded is None and dump.gapless and not dump.unusable
            expected[rank, id_] = _functions(dump.entries, key) if is_whole else {}
        known = expected[rank, id_].get(operation, [])
        pairs = [(at, known[calls[at].number]) for at in positions if calls[at].number < len(known)]
        if all(size is None or size == calls[at].size for at, (_, size) in pairs):
            found.update((at, sequence_id) for at, (sequence_id, _) in pairs)
    return found


def _functions(entries: Any, key: str) -> dict[str, list[tuple[int, int | None]]]:
    """NCCL's function -> (sequence number, bytes as NCCL counts them) of each of its calls, in order."""
    found: dict[str, list[tuple[int, int | None]]] = defaultdict(list)
    if key not in entries.groups:
        return found
    chosen = (entries.group == entries.groups.index(key)) & (entries.stream == COLLECTIVE)
    for entry in entries.take(chosen):
        for operation, size in nccl_calls.of_signature(entry.signature):
            found[operation].append((entry.sequence_id, size))
    return found


def _summary(calls: Iterable[JoinedCall]) -> list[Durations]:
    times: dict[tuple[str, str, int], dict[int, _Time]] = defaultdict(lambda: defaultdict(_Time))
    some: dict[tuple[str, str, int], JoinedCall] = {}
    for joined in calls:
        call, group = joined.call, joined.group
        key = (group.id if group is not None else call.communicator.id, call.operation, call.size)
        some.setdefault(key, joined)
        rank = joined.rank if group is not None and joined.rank is not None else call.communicator.rank
        time = times[key][rank]
        time.calls += 1
        time.seconds += call.seconds
        time.moved += call.bus_bandwidth * call.seconds
    made = []
    for key, by_rank in times.items():
        call, group = some[key].call, some[key].group
        fastest = min(by_rank.values(), key=lambda time: time.mean)
        made.append(
            Durations(
                group=group,
                communicator="" if group is not None else call.communicator.id,
                communicator_name="" if group is not None else call.communicator.name,
                members=call.communicator.size,
                operation=call.operation,
                size=call.size,
                calls=sum(time.calls for time in by_rank.values()),
                seconds=sum(time.seconds for time in by_rank.values()),
                ranks={rank: time.mean for rank, time in sorted(by_rank.items())},
                bus_bandwidth=fastest.moved / fastest.seconds if fastest.seconds else 0.0,
            )
        )
    return sorted(made, key=lambda one: one.seconds, reverse=True)


def _notes(read: Sequence[InspectorFile], others: int) -> Iterator[str]:
    skipped = [file for file in read if file.skipped]
    if skipped:
        yield f"of {count_text(len(skipped), 'file')} of NCCL Inspector, only the newest part was read"
    unusable, dropped = sum(file.unusable for file in read), sum(file.dropped for file in read)
    if unusable:
        yield f"{count_text(unusable, 'line')} in files of NCCL Inspector could not be read"
    if dropped:
        yield f"NCCL Inspector has lost {count_text(dropped, 'call')}, which it did not write in time"
    if others:
        yield f"{count_text(others, 'call')} in files of NCCL Inspector are of processes that are not of this run"


def short_text(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
