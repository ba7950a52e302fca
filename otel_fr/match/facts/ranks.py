"""What one rank is: how it ended, who stopped it, what is overdue of it, whether its host gives it a processor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from signal import SIGINT, SIGKILL
from typing import Any, Final, Protocol, cast

from otel_fr.communication_errors import STOP_SIGNALS, STORE, tells_of_stop, tells_of_user
from otel_fr.match.finding import Category
from otel_fr.match.model import Ending, Evidence, Overdue, Rank

_PEER_EXCEPTION = "otel_fr.fault_tolerance.peers.PeerFailedError"
"""What otel-fr raises in a rank whose call it has ended for a failed peer."""


def process_ending(
    *, signal: int | None, exit_code: int | None, clean: bool, exception: str, exit_message: str
) -> Ending:
    """How a process ended.

    A signal after an uncaught exception of the main thread only ended what was left of it: the launcher's, or one at
    the interpreter's exit. A program that turns Ctrl-C into an exit without an error has not ended well.

    Args:
        signal: that ended it; None or 0: none did. exit_code: None: not known. clean: it said that it ends cleanly.
        exception: of the main thread; "": none. exit_message: as of `Rank`.
    """
    raised, stopped = bool(exception), tells_of_stop(exit_message)
    if signal:
        return Ending.RAISED if raised and not tells_of_stop(exception) else Ending.KILLED
    if exit_code is not None:
        return Ending.RAISED if exit_code or stopped else Ending.CLEAN
    if raised or stopped:
        return Ending.RAISED
    return Ending.CLEAN if clean else Ending.GONE


_NOT_RUNNING = ("stopped", "frozen", "a zombie", "dead")
"""Beginnings of `Rank.doing` of a process none of whose threads runs."""


def runs_not(doing: str) -> bool:
    """None of the threads of a process whose kernel says this of it runs."""
    return doing.startswith(_NOT_RUNNING)


def is_halted(info: Rank | None) -> bool:
    """None of its threads runs, or ran when it was killed: a signal, a debugger or a cgroup's freezer stopped it."""
    return (
        info is not None
        and info.python_blocked
        and info.ending in (Ending.RUNNING, Ending.KILLED)
        and runs_not(info.doing)
    )


def may_run(evidence: Evidence, rank: int) -> bool:
    """It is not known to have ended."""
    return evidence.ending_of(rank) in (Ending.RUNNING, Ending.UNKNOWN)


def ended_for_peer(info: Rank) -> bool:
    """It ended because otel-fr had told it that a peer had failed: never a cause, whatever else it has done since."""
    return info.ended_for_peer or (info.ending is Ending.RAISED and info.exception.startswith(_PEER_EXCEPTION))


def gave_up_at_store(info: Rank) -> bool:
    """It ended because others did not arrive at the job's store: their fault, not its own."""
    return info.ending is Ending.RAISED and info.exception.startswith(STORE)


_STOP_STATUSES = frozenset(128 + number for number in STOP_SIGNALS)
"""Exit statuses with which programs, as shells do, say which signal ended them."""


def was_stopped(info: Rank) -> bool:
    """It was ended by a launcher's or a user's signal, or by its monitor because it was overdue."""
    if info.ended_by_monitor:
        return info.ending in (Ending.KILLED, Ending.RAISED)
    if info.ending is Ending.KILLED:  # by any signal, if an exception shows that it was stopped before
        return info.signal in STOP_SIGNALS or tells_of_stop(info.exception)
    if info.ending is Ending.RAISED and not info.exception:
        return info.exit_code in _STOP_STATUSES or tells_of_stop(info.exit_message)
    return info.ending is Ending.RAISED and tells_of_stop(info.exception)


def not_yet_here(here: Mapping[int, Rank], world_size: int | None, before: Mapping[int, Rank]) -> dict[int, Rank]:
    """The ranks of a run that have not come to it, as their processes are known from the run before.

    A program that recovers in one process destroys its groups and calls ``init_process_group`` again. Mostly its
    processes keep their ranks. If they do not, the absent rank is known only where one rank and one process are left.

    Args:
        here: the ranks that have come. before: the ranks of the run before.
    """
    rank_of = {one.place.process: rank for rank, one in here.items() if one.place.pid is not None}
    placed = {rank: one for rank, one in before.items() if one.place.pid is not None}
    # One that left the run before in good order, and whose process has not ended, may be on its way.
    left = {
        rank: one
        for rank, one in placed.items()
        if one.place.process not in rank_of and (one.ending is not Ending.CLEAN or one.exit_code is not None)
    }
    absent = set(range(world_size or 0)).difference(here)
    has_kept = all(rank_of.get(one.place.process, rank) == rank for rank, one in placed.items())
    if not has_kept or absent.isdisjoint(left):  # the process that shows that may have no file of the run before
        left = dict(zip(absent, left.values(), strict=True)) if len(absent) == len(left) == 1 else {}
    return {rank: dataclasses.replace(left[rank], rank=rank, progress={}) for rank in absent if rank in left}


def by_user(info: Rank) -> bool:
    """It was stopped by SIGINT: no launcher sends that because of a peer."""
    if not was_stopped(info):
        return False
    if info.signal == SIGINT or info.exit_code == 128 + SIGINT:
        return True
    return tells_of_user(info.exception) or tells_of_user(info.exit_message)


def may_be_cleared_away(info: Rank) -> bool:
    """It was killed, and not by the kernel for want of memory: whoever stops a job so ends ranks that do not react."""
    return info.ending is Ending.KILLED and info.signal == SIGKILL and not info.kill_reason


_OF_DEVICE: Final = (
    "CUDA error: ",
    "CUDA driver error: ",
    "CUDA out of memory",
    "Cuda failure ",
    "HIP error: ",
    "unhandled cuda error",
)
"""Parts of what PyTorch (c10/cuda/CUDAException.cpp) and NCCL (``ncclGetLastError``) say of a failed call of CUDA."""
_OF_PEER: Final = ("peer GPU memory", "nvlink")
"""Parts of CUDA's errors (``cudaErrorNvlinkUncorrectable`` and others) that a peer's device may have caused."""


def is_device_error(exception: str) -> bool:
    """The exception tells of an error of the rank's own device: an illegal access, a failed assertion, no memory left.

    Also if a call of NCCL's raised it. (What NCCL raises because a peer has gone is ``ncclRemoteError`` or
    ``ncclSystemError``, or that the communicator was aborted.)
    """
    if not any(part in exception for part in _OF_DEVICE):
        return False
    lower = exception.lower()
    return not any(part.lower() in lower for part in _OF_PEER)


MOST: Final = 0.5
"""Share of the time since a rank last moved from which on a wait for a processor explains that."""


def lacks_processor(info: Rank) -> bool:
    """It has waited for a processor most of the time since it last moved."""
    return info.ending is Ending.RUNNING and info.idle is not None and info.starved >= max(0.1, MOST * info.idle)


def is_starved(info: Rank, window: float) -> bool:
    """It `lacks_processor`, and has not had the window for itself yet.

    An endless loop on a busy host has had it in the end: then it counts as one on an idle host does.
    """
    if not lacks_processor(info) or runs_not(info.doing):
        return False
    return (info.idle or 0.0) - info.starved < window


CATEGORIES: Final = {
    "heartbeat": Category.HEARTBEAT_MISSED,
    "section": Category.SECTION_OVERRUN,
    "outside": Category.SECTION_OVERRUN,
}
"""The kinds of what may be overdue, with the category of the fault."""
EXCUSABLE: Final = frozenset({Category.MISSING_RANK, Category.RANK_STUCK, Category.STRAGGLER})
"""Faults that a section may explain: others wait for its rank. Calls that do not fit together, no section explains."""


class Activity(Protocol):
    """An activity of a rank report (`otel_fr.rank_report.ReportedActivity`)."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def age_s(self) -> float | None: ...
    @property
    def limit_s(self) -> float | None: ...
    @property
    def is_overdue(self) -> bool: ...


def reported(items: Iterable[Activity]) -> tuple[Overdue, ...]:
    """What is overdue of the activities of a rank report."""
    return tuple(
        [
            Overdue(cast("Any", item.kind), item.name, item.age_s, item.limit_s)
            for item in items
            if item.is_overdue and item.age_s is not None and item.limit_s is not None and item.kind in CATEGORIES
        ]
    )


def reported_within(items: Iterable[Activity]) -> Overdue | None:
    """Of the activities of a rank report, what `Rank.within` is.

    Heartbeats are no excuse: one says that its rank worked a moment ago, not how long what it does now may take.
    """
    found: list[Overdue] = []
    for item in items:
        if item.is_overdue:
            return None
        if item.kind == "section" and item.age_s is not None and item.limit_s is not None:
            found.append(Overdue("section", item.name, item.age_s, item.limit_s))
    return max(found, key=lambda item: (item.limit - item.age, item.name), default=None)


def is_excused(info: Rank) -> bool:
    """Its program has said how long what it does may take, and that time is not over."""
    return info.ending is Ending.RUNNING and info.within is not None and not info.overdue


def worst_of(info: Rank) -> Overdue | None:
    """What is overdue of a rank, or was when it ended; None: nothing."""
    if not info.overdue:
        return None
    # A section says more than a heartbeat; of sections, the innermost that is overdue has been open for the shortest.
    order = {"section": 0, "outside": 1, "heartbeat": 2}
    return min(info.overdue, key=lambda item: (order[item.kind], item.age, item.name))


def by_kind(overdue: Mapping[int, Overdue]) -> dict[str, dict[int, Overdue]]:
    """The ranks by what is overdue of them, in rising order."""
    found: dict[str, dict[int, Overdue]] = {}
    for rank, item in sorted(overdue.items()):
        found.setdefault(f"{item.kind} {item.name}".strip(), {})[rank] = item
    return found
