"""What to do first about an incident: one table, by its category and by how its culprits and its job ended."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from otel_fr.incident import CulpritData, IncidentData
from otel_fr.match import Category, Ending
from otel_fr.match.facts.ranks import is_device_error
from otel_fr.match.rules.blocked import call_too_many, starved_rank
from otel_fr.match.rules.elsewhere import unexplained_failure
from otel_fr.match.rules.mismatches import threads_share_group
from otel_fr.stacks import frames_of
from otel_fr_collector.incidents.bounds import EXITING
from otel_fr_collector.incidents.resolution import Resolution

HARDWARE: Final = re.compile(
    r"uncorrectable ECC|GPU is lost|fallen off the bus|NVLink.{0,40}error|\bXid\b.{0,40}[ :](?:48|64|74|79|92|94|95)\b",
    re.IGNORECASE,
)
"""Errors of CUDA, NVML and the kernel that name the device, not the program. NVIDIA's catalogue ("Xid errors") ascribes
these Xid numbers to memory, NVLink and bus, not to applications."""
_FULL_DISK: Final = re.compile(r"\[Errno (?:28|122)\]|No space left on device|Disk quota exceeded")
_NO_MEMORY: Final = re.compile(r"\bMemoryError\b|\bout of memory\b|Cannot allocate memory")
_PROGRAM: Final = re.compile(
    r"\b(?:ModuleNotFound|Import|Name|UnboundLocal|Type|Attribute|Assertion|Index|Key|Value|ZeroDivision|FloatingPoint"
    r"|NotImplemented|Syntax|Indentation)Error\b"
)
"""Python's exceptions about the program or its data, which another host raises as well."""
_CHECKPOINT: Final = re.compile(
    r"/torch/serialization\.py:|/torch/distributed/checkpoint/|/safetensors/"
    r"|:\d+ \w*(?:save|load|write|upload|restore)\w*(?:checkpoint|ckpt)",
    re.IGNORECASE,
)
"""Places of code that reads or writes a checkpoint; `torch/utils/checkpoint.py` is about activations."""
_CHECKPOINT_SECTION: Final = re.compile(r"section .*(?:checkpoint|ckpt|\bsav(?:e|ing)\b)", re.IGNORECASE)
_COLLECTIVE: Final = "/torch/distributed/distributed_c10d.py:"
_HALTED: Final = "The process is stopped by "
_MAX_STACKS: Final = 4
_LIMITS: Final = {signal.SIGXCPU: "ulimit -t", signal.SIGXFSZ: "ulimit -f"}

FIND_HOST = "Find the host (power, network, kernel log), and start the job without it if it does not come back."
"""What to do first if a host no longer sends anything."""
_CHECKPOINT_BEFORE = (
    "Fix the call, and start the job again from a checkpoint written before the incident began: later results cannot "
    "be trusted."
)
_SAME_ORDER = (
    "Make every rank enqueue the collectives of overlapping groups in the same order, and start the job again."
)
_FIX_WAIT = (
    "Fix what the rank's line waited for (storage, a lock) or the call that it skipped, and start the job again."
)
_MORE_TIME = "If the rank was busy, raise the timeout. If it hung, fix what it waited for. Then start the job again."
WHAT_TO_DO: Mapping[Category, str] = {
    Category.MISSING_RANK: (
        "Fix what the rank's line waits for (storage, a lock). If the rank is busy (a checkpoint, a compilation), let "
        "it finish. If it skipped a call, end the job."
    ),
    Category.RANK_STUCK: (
        "Keep the stack and the files, then end the job. If a GPU or a file system of the host hangs (state D), drain "
        "the host."
    ),
    Category.RANK_DEAD: (
        "Read the end of the rank's output and the kernel log of its host. Fix the cause they show. Drain the host "
        "only after two deaths on it."
    ),
    **dict.fromkeys((one for one in Category if one.is_mismatch), f"End the job. {_CHECKPOINT_BEFORE}"),
    Category.UNMATCHED_P2P: "End the job: a message without its other half never completes.",
    Category.DEADLOCK: f"End the job. {_SAME_ORDER}",
    Category.STALLED_COLLECTIVE: "Find the host (its links, its GPUs), drain it, and restart the job without it.",
    Category.STRAGGLER: (
        "Compare the rank's host (clocks, throttling, other processes) and its work with the others'. Drain a host "
        "that is slow again and again."
    ),
    Category.HEARTBEAT_MISSED: (
        "Look at the rank's line. If the rank is busy, give that part a section with its own timeout. If it hangs, fix "
        "what it waits for, or end the job."
    ),
    Category.SECTION_OVERRUN: (
        "Look at the rank's line. If the rank is busy, give the section a longer timeout. If it hangs, fix what it "
        "waits for, or end the job."
    ),
}
"""By category, what to do first unless a row of `CASES` applies. It begins the runbook's section "What to do"."""

ONCE_OVER: Mapping[Category, str] = {
    Category.MISSING_RANK: _FIX_WAIT,
    Category.RANK_STUCK: (
        "If a GPU or a file system of the host hangs (state D), drain the host. If not, fix what the rank's line "
        "waited for. Then start the job again."
    ),
    **dict.fromkeys((one for one in Category if one.is_mismatch), _CHECKPOINT_BEFORE),
    Category.UNMATCHED_P2P: "Give the message its other half, and start the job again.",
    Category.DEADLOCK: _SAME_ORDER,
    Category.HEARTBEAT_MISSED: _MORE_TIME,
    Category.SECTION_OVERRUN: _MORE_TIME,
}
"""As `WHAT_TO_DO`, if the job has ended or the incident is over; only where it differs."""

Culprits = Sequence[CulpritData]


class Case(NamedTuple):
    """A row of the table: what to do first where it applies.

    Attributes:
        categories: of incidents to which it may apply.
        once_over: as in `ONCE_OVER`; "": the same as ``text``.
    """

    text: str
    categories: tuple[Category, ...]
    applies: Callable[[IncidentData, Culprits], bool]
    once_over: str = ""


def _error(pattern: re.Pattern[str]) -> Callable[[IncidentData, Culprits], bool]:
    return lambda _, culprits: any(pattern.search(one["error"]) for one in culprits)


def _ended(*endings: str) -> Callable[[IncidentData, Culprits], bool]:
    return lambda _, culprits: any(one.get("ending") in endings for one in culprits)


def _limit(number: int) -> Callable[[IncidentData, Culprits], bool]:
    return lambda _, culprits: any(one.get("signal") == number for one in culprits)


def _is_in_checkpoint(data: IncidentData, _: Culprits) -> bool:
    """Whether a culprit reads or writes a checkpoint, by its stack or its overdue section. A rank in a checkpoint's
    collective waits for its peers, and one that copies tensors may wait for its device: neither waits for storage."""
    if data["stuck_on"] == "device":
        return False
    for stack in itertools.islice(data["stacks"].values(), _MAX_STACKS):
        places = [frame.place for frame in frames_of(stack)]
        if any(map(_CHECKPOINT.search, places)):
            return not any(_COLLECTIVE in place for place in places)
    return any(map(_CHECKPOINT_SECTION.match, itertools.islice(data["values"].values(), _MAX_STACKS)))


def _is_halted(data: IncidentData, _: Culprits) -> bool:
    """Whether a culprit's process is stopped. Its monitor cannot take its stack, and says so in its place."""
    return any(text.startswith(_HALTED) for text in itertools.islice(data["stacks"].values(), _MAX_STACKS))


_SAME_CALLS = "Give all ranks the same steps and calls, and start the job again."
_DIED = (Category.RANK_DEAD,)
_MISSED = (Category.MISSING_RANK,)
CASES: tuple[Case, ...] = (
    Case(
        "End the job, give each thread its own process group, and start again from a checkpoint written before "
        "the incident began.",
        tuple(one for one in Category if one.is_mismatch),
        lambda data, _: data["rule"] == threads_share_group.__name__,
    ),
    Case(
        "Look at what else runs on the rank's host, and at the CPU limit of its container: the rank gets no processor.",
        (Category.STRAGGLER,),
        lambda data, _: data["rule"] == starved_rank.__name__,
    ),
    Case(FIND_HOST, tuple(Category), lambda data, _: data["stuck_on"] == "lost"),
    Case("Drain the host: the rank's device has failed.", _DIED, _error(HARDWARE)),
    Case(
        "Free space on the file system that the rank's line writes to, and start the job again.",
        _DIED,
        _error(_FULL_DISK),
    ),
    Case(
        "Let the rank's line take less memory, or give it more, and start the job again.",
        _DIED,
        _error(_NO_MEMORY),
    ),
    *(
        Case(f"Raise the limit that the rank has reached (`{name}`), and start the job again.", _DIED, _limit(number))
        for number, name in _LIMITS.items()
    ),
    Case("Fix the program at the rank's line, and start the job again.", _DIED, _error(_PROGRAM)),
    Case(
        "Fix what the rank's exception names (the program, its data, a file, a server), and start the job again.",
        _DIED,
        lambda _, culprits: any(one["error"] and not is_device_error(one["error"]) for one in culprits),
    ),
    Case(
        f"End the job: the rank has left, and joins no other call. {_SAME_CALLS}",
        _MISSED,
        _ended(EXITING, Ending.CLEAN.value),
        _SAME_CALLS,
    ),
    Case(f"End the job. {_SAME_CALLS}", _MISSED, lambda data, _: data["rule"] == call_too_many.__name__, _SAME_CALLS),
    Case(
        _FIX_WAIT,
        _MISSED,
        _ended(Ending.RAISED.value, Ending.KILLED.value, Ending.GONE.value),
    ),
    Case(
        "Find what stopped the process (a signal, a debugger), then run `kill -CONT PID`. If calls already timed out, "
        "end the job.",
        (Category.RANK_STUCK,),
        _is_halted,
        "Find what stopped the process (a signal, a debugger), and start the job again.",
    ),
    Case(
        "End the job. Either one rank skipped a message, or all send (or all receive) first.",
        (Category.DEADLOCK,),
        lambda data, _: data["operation"] in ("send", "recv"),
        "Give each message its other half, let one of the ranks send first, and start the job again.",
    ),
    Case(
        "Read the ranks' errors, look at the peers that they name (the host, its links), and start the job again.",
        (Category.STALLED_COLLECTIVE,),
        lambda data, _: data["rule"] == unexplained_failure.__name__,
    ),
    Case(
        "The rank reads or writes a checkpoint: let it finish. If that takes longer than usual, look at its storage "
        "(mount, quota, load). If it always takes so long, put it into a section whose timeout fits.",
        (Category.MISSING_RANK, Category.RANK_STUCK, Category.HEARTBEAT_MISSED, Category.SECTION_OVERRUN),
        _is_in_checkpoint,
        "Look at the storage of the rank's checkpoint (mount, quota, load), and start the job again.",
    ),
)
"""The first row that applies counts. A host is drained only for what its device or its kernel shows."""


def what_to_do(
    data: IncidentData, culprits: Culprits, *, resolution: Resolution | None = None, is_over: bool = False
) -> str:
    """What to do first; "" if the incident needs nothing any more, or follows from another one, which says it.

    Some incidents matter after they are resolved: results computed with mismatched calls stay wrong, and a job that a
    fault has ended does not mend itself.

    Args:
        resolution: why it was resolved; None: it is open, or the reason is not known. is_over: its job has ended.
    """
    category, is_open = Category(data["category"]), data["state"] == "firing"
    matters = is_open or category.is_mismatch or resolution is Resolution.ENDED
    if data["caused_by"] is not None or not matters:
        return ""
    is_over = is_over or not is_open
    for case in CASES:
        if category in case.categories and case.applies(data, culprits):
            return (is_over and case.once_over) or case.text
    return (is_over and ONCE_OVER.get(category)) or WHAT_TO_DO[category]
