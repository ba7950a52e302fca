"""The state of one rank: how it ended, who stopped it, what is overdue, whether its host gives it a processor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from signal import SIGINT, SIGKILL
from typing import Any, Final, cast

from otel_fr.communication_errors import STOP_SIGNALS, STORE, tells_of_stop, tells_of_user
from otel_fr.match.finding import Category
from otel_fr.match.model import Ending, Evidence, Overdue, Rank
from otel_fr.rank_report import ReportedActivity

_PEER_EXCEPTION = "otel_fr.fault_tolerance.peers.PeerFailedError"
"""What otel-fr raises in a rank after it has ended the rank's call because a peer failed."""


def process_ending(
    *, signal: int | None, exit_code: int | None, clean: bool, exception: str, exit_message: str
) -> Ending:
    """Return how a process ended.

    A signal after an uncaught exception of the main thread only ended what was left of the process: its launcher sent
    it, or it came at the interpreter's exit. A program that turns Ctrl-C into an exit without an error has not ended
    well.

    Args:
        signal: the signal that ended it; None or 0: none did.
        exit_code: None: unknown.
        clean: the process said that it ends cleanly.
        exception: of the main thread; "": none.
        exit_message: like `Rank.exit_message`.
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
"""How `Rank.doing` begins for a process in which no thread runs."""


def runs_not(doing: str) -> bool:
    """True if no thread of the process runs, according to its `Rank.doing`."""
    return doing.startswith(_NOT_RUNNING)


def is_halted(info: Rank | None) -> bool:
    """True if no thread of the rank runs, or ran when it was killed: stopped by a signal, a debugger or the freezer."""
    return (
        info is not None
        and info.python_blocked
        and info.ending in (Ending.RUNNING, Ending.KILLED)
        and runs_not(info.doing)
    )


def may_run(evidence: Evidence, rank: int) -> bool:
    """True if the rank is not known to have ended."""
    return evidence.ending_of(rank) in (Ending.RUNNING, Ending.UNKNOWN)


def ended_for_peer(info: Rank) -> bool:
    """True if the rank ended because otel-fr told it that a peer had failed: never a cause, whatever else it did."""
    return info.ended_for_peer or (info.ending is Ending.RAISED and info.exception.startswith(_PEER_EXCEPTION))


def gave_up_at_store(info: Rank) -> bool:
    """True if the rank ended because others did not arrive at the job's store: their fault, not its own."""
    return info.ending is Ending.RAISED and info.exception.startswith(STORE)


_STOP_STATUSES = frozenset(128 + number for number in STOP_SIGNALS)
"""Exit statuses with which programs, like shells, say which signal ended them."""


def was_stopped(info: Rank) -> bool:
    """True if a launcher's or a user's signal ended the rank, or its monitor did because the rank was overdue."""
    if info.ended_by_monitor:
        return info.ending in (Ending.KILLED, Ending.RAISED)
    if info.ending is Ending.KILLED:  # by any signal, if an exception shows that it was stopped before
        return info.signal in STOP_SIGNALS or tells_of_stop(info.exception)
    if info.ending is Ending.RAISED and not info.exception:
        return info.exit_code in _STOP_STATUSES or tells_of_stop(info.exit_message)
    return info.ending is Ending.RAISED and tells_of_stop(info.exception)


def not_yet_here(here: Mapping[int, Rank], world_size: int | None, before: Mapping[int, Rank]) -> dict[int, Rank]:
    """Return the ranks that have not come to a run, with what the previous run knows about their processes.

    A program that recovers in one process destroys its groups and calls ``init_process_group`` again. Mostly, its
    processes keep their ranks. If they do not, an absent rank is known only if one rank and one process are left.

    Args:
        here: the ranks that have come.
        before: the ranks of the previous run.
    """
    rank_of = {one.place.process: rank for rank, one in here.items() if one.place.pid is not None}
    placed = {rank: one for rank, one in before.items() if one.place.pid is not None}
    # A rank that left the previous run cleanly may be on its way, unless its process has ended.
    left = {
        rank: one
        for rank, one in placed.items()
        if one.place.process not in rank_of and (one.ending is not Ending.CLEAN or one.exit_code is not None)
    }
    absent = set(range(world_size or 0)).difference(here)
    kept = [rank_of[one.place.process] == rank for rank, one in placed.items() if one.place.process in rank_of]
    if not all(kept) or (not kept and absent.isdisjoint(left)):  # maybe none of these was in the previous run
        left = dict(zip(absent, left.values(), strict=True)) if len(absent) == len(left) == 1 else {}
    return {rank: dataclasses.replace(left[rank], rank=rank, progress={}) for rank in absent if rank in left}


def by_user(info: Rank) -> bool:
    """True if SIGINT stopped the rank: no launcher sends that because of a peer."""
    if not was_stopped(info):
        return False
    if info.signal == SIGINT or info.exit_code == 128 + SIGINT:
        return True
    return tells_of_user(info.exception) or tells_of_user(info.exit_message)


def may_be_cleared_away(info: Rank) -> bool:
    """True if SIGKILL ended the rank, and not the kernel for want of memory: launchers kill ranks that do not react."""
    return info.ending is Ending.KILLED and info.signal == SIGKILL and not info.kill_reason


_OF_DEVICE: Final = (
    "CUDA error: ",
    "CUDA driver error: ",
    "CUDA out of memory",
    "Cuda failure ",
    "HIP error: ",
    "unhandled cuda error",
)
"""Parts of messages of PyTorch (c10/cuda/CUDAException.cpp) and NCCL (``ncclGetLastError``): a call of CUDA failed."""
_OF_PEER: Final = ("peer GPU memory", "nvlink")
"""Parts of CUDA's errors (``cudaErrorNvlinkUncorrectable`` and others) that a peer's device may have caused."""


def is_device_error(exception: str) -> bool:
    """True if the exception reports an error of the rank's own device, such as an illegal access or no memory left.

    A call of NCCL may raise it, too. (What NCCL raises because a peer has gone is ``ncclRemoteError`` or
    ``ncclSystemError``, or that the communicator was aborted.)
    """
    if not any(part in exception for part in _OF_DEVICE):
        return False
    lower = exception.lower()
    return not any(part.lower() in lower for part in _OF_PEER)


MOST: Final = 0.5
"""A wait for a processor explains why a rank does not move if it takes at least this share of `Rank.idle`."""


def lacks_processor(info: Rank) -> bool:
    """True if the rank has waited for a processor for most of the time since it last moved."""
    return info.ending is Ending.RUNNING and info.idle is not None and info.starved >= max(0.1, MOST * info.idle)


def is_starved(info: Rank, window: float) -> bool:
    """True if the rank `lacks_processor`, and has run for less than the window since it last moved.

    An endless loop on a busy host has run for the window in the end. Then it counts like a loop on an idle host.
    """
    if not lacks_processor(info) or runs_not(info.doing):
        return False
    return (info.idle or 0.0) - info.starved < window


CATEGORIES: Final = {
    "heartbeat": Category.HEARTBEAT_MISSED,
    "section": Category.SECTION_OVERRUN,
    "outside": Category.SECTION_OVERRUN,
}
"""Kind of an overdue activity -> category of the fault."""
EXCUSABLE: Final = frozenset({Category.MISSING_RANK, Category.RANK_STUCK, Category.STRAGGLER})
"""Faults that a section may explain, because others wait for its rank. No section explains calls that do not match."""


def reported(items: Iterable[ReportedActivity]) -> tuple[Overdue, ...]:
    """Return the overdue activities of a rank report."""
    return tuple(
        [
            Overdue(cast("Any", item.kind), item.name, item.age_s, item.limit_s)
            for item in items
            if item.is_overdue and item.age_s is not None and item.limit_s is not None and item.kind in CATEGORIES
        ]
    )


def reported_within(items: Iterable[ReportedActivity]) -> Overdue | None:
    """Return `Rank.within` for the activities of a rank report.

    Heartbeats are no excuse: a heartbeat says that its rank worked a moment ago, not how long its present work may
    take.
    """
    found: list[Overdue] = []
    for item in items:
        if item.is_overdue:
            return None
        if item.kind == "section" and item.age_s is not None and item.limit_s is not None:
            found.append(Overdue("section", item.name, item.age_s, item.limit_s))
    return max(found, key=lambda item: (item.limit - item.age, item.name), default=None)


def is_excused(info: Rank) -> bool:
    """True if the rank's program has said how long its present work may take, and that time is not over."""
    return info.ending is Ending.RUNNING and info.within is not None and not info.overdue


def worst_of(info: Rank) -> Overdue | None:
    """Return the overdue activity that says most about a rank, now or when it ended; None: nothing is overdue."""
    if not info.overdue:
        return None
    # A section says more than a heartbeat; of sections, the innermost that is overdue has been open for the shortest.
    order = {"section": 0, "outside": 1, "heartbeat": 2}
    return min(info.overdue, key=lambda item: (order[item.kind], item.age, item.name))


def by_kind(overdue: Mapping[int, Overdue]) -> dict[str, dict[int, Overdue]]:
    """Group the ranks by the kind and name of what is overdue, in ascending order."""
    found: dict[str, dict[int, Overdue]] = {}
    for rank, item in sorted(overdue.items()):
        found.setdefault(f"{item.kind} {item.name}".strip(), {})[rank] = item
    return found
