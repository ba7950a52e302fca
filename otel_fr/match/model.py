"""What the match engine is told (`Evidence`) and what it says (`Finding`): plain data, no I/O.

Times are durations in seconds measured by one rank's own clock. Two ranks' clocks are never compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

Sizes = tuple[tuple[int, ...], ...]
Stream = Literal["collective", "p2p", "monitored_barrier"]


class Signature(NamedTuple):
    """What a call was asked to do. Hashable, so equal calls share one.

    Attributes:
        operation: `torch.distributed`'s name of it (docs/telemetry.md lists them), whatever the backend calls it.
        input_sizes, output_sizes: one shape per tensor.
        input_dtypes, output_dtypes: PyTorch scalar type names (``"Float"``), one per tensor.
        input_splits, output_splits: all_to_all_single only; None: even; (): not recorded.
        reduce_op: lower case (``"sum"``); None: has none, or unknown (PyTorch's own recorder does not record it).
        root, peer: global ranks. tag: p2p only.
        any_source: a receive from whoever sends.
    """

    operation: str
    input_sizes: Sizes = ()
    output_sizes: Sizes = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    input_splits: tuple[int, ...] | None = None
    output_splits: tuple[int, ...] | None = None
    any_source: bool = False


class CallState(Enum):
    """How far one rank's call came."""

    IN_FLIGHT = "scheduled"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Issued; the backend does not tell when it ends."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group. ``ranks`` are global; empty: members unknown."""

    id: str
    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One rank's part in one collective (or one send or receive).

    Attributes:
        group: `Group.id`.
        sequence_id: the number within (group, stream). For p2p a rank's own count, not comparable.
        record: position in the rank's recorder; orders one rank's calls.
        pair_index: p2p: the how-many-th with this peer, direction and tag in this group, from 0.
        age: seconds since issue (None: unknown, taken as long ago).
        duration: seconds from issue to end, if ended and known.
        gap: seconds from the rank's previous end of a call to this issue, if known.
        error: error.type of a failed call (``"timeout"``).
        site: ``"file:line function"``; empty: unknown.
        batch: calls of one coalesced batch share it; None: stands alone.
    """

    rank: int
    group: str
    stream: Stream
    sequence_id: int
    record: int
    signature: Signature
    state: CallState
    pair_index: int = 0
    age: float | None = None
    duration: float | None = None
    gap: float | None = None
    timeout: float | None = None
    error: str | None = None
    site: str = ""
    batch: int | None = None


class Ending(Enum):
    """How a rank stands."""

    RUNNING = "running"
    CLEAN = "clean"
    """Left Python's normal way, or with exit code 0."""
    RAISED = "raised"
    """An uncaught exception is recorded, or the exit code is not 0."""
    KILLED = "killed"
    """Ended by a signal."""
    GONE = "gone"
    """Ended, nobody knows how."""
    UNKNOWN = "unknown"
    """No word of it (no file, no report)."""


@dataclass(slots=True)
class Progress:
    """Where a rank stands in one group. None: not known.

    Attributes:
        enqueued, completed: last collective sequence id issued / completed; 0: none yet.
        first_recorded: the oldest collective of the group still in the rank's recorder; None: nothing dropped.
    """

    enqueued: int | None = None
    completed: int | None = None
    first_recorded: int | None = None


@dataclass(slots=True)
class Rank:
    """What is known of one rank.

    Attributes:
        ending: how it stands. ``signal`` / ``exit_code`` / ``exception`` say more.
        exception: ``"ValueError: bad sample 4711"``. exception_site: ``"file:line function"`` that raised it.
        python_blocked: alive, but its Python threads do not run (GIL held in C code, or stopped).
        idle: seconds since it last issued or ended a call.
        site: ``"file:line function"`` where its main thread is now.
        stack: text, main thread first.
        progress: by group id. A group that is not in it: the rank has not used it.
        complete: every call the rank has in flight is in the evidence, and its `progress` is exact.
        file: its flight-recorder file.
    """

    rank: int
    _: dataclasses.KW_ONLY
    ending: Ending = Ending.RUNNING
    signal: int | None = None
    exit_code: int | None = None
    exception: str = ""
    exception_site: str = ""
    python_blocked: bool = False
    idle: float | None = None
    site: str = ""
    stack: str = ""
    progress: dict[str, Progress] = dataclasses.field(default_factory=dict)
    complete: bool = True
    file: str = ""


class MessagePattern(NamedTuple):
    """``rank`` did equally many of these sends (or receives) before each of the collectives of ``step``.

    Attributes:
        group, step: `Group.id`. source, destination: global ranks; ``rank`` is one of them.
    """

    rank: int
    group: str
    source: int
    destination: int
    tag: int
    step: str


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything known of one run at one moment.

    Attributes:
        window: seconds a call must have been in flight before its rank counts as waiting.
        world_size: None: unknown.
        steady: rhythms that were kept up to a collective that is open now.
    """

    groups: Mapping[str, Group]
    calls: Sequence[Call]
    ranks: Mapping[int, Rank]
    window: float
    world_size: int | None = None
    kept_patterns: frozenset[MessagePattern] = frozenset()


class Category(str, Enum):
    """What kind of fault; the values are those of the incident's ``category``."""

    MISSING_RANK = "missing_rank"
    OP_MISMATCH = "op_mismatch"
    SIZE_MISMATCH = "size_mismatch"
    DTYPE_MISMATCH = "dtype_mismatch"
    ROOT_MISMATCH = "root_mismatch"
    REDUCE_OP_MISMATCH = "reduce_op_mismatch"
    UNMATCHED_P2P = "unmatched_p2p"
    DEADLOCK = "deadlock"
    RANK_DEAD = "rank_dead"
    RANK_STUCK = "rank_stuck"
    STALLED_COLLECTIVE = "stalled_collective"
    STRAGGLER = "straggler"


@dataclass(slots=True, kw_only=True)
class Finding:
    """One fault, or one consequence of another (`caused_by` is then the other's key).

    Attributes:
        key: names the fault; the same fault has the same key as evidence grows.
        operation, sequence_id: of the collective the fault shows in; "" / None: of none.
        field: what differs ("operation", "input_sizes", "dtype", "root", "reduce_op"), for a mismatch.
        values: rank -> its value of that field, as text.
        call_sites: rank -> ``"file:line function"``: the culprits' and the waiting ranks'.
        stacks: rank -> text, for the culprits.
        p2p: (source, destination, tag, pair index), global ranks, where the fault shows in a send or receive.
        age: seconds the longest waiting rank has waited, if known.
        stuck_on: where a living culprit is held up: ``"host"`` (all that it issued has completed, and it does not issue
            what its peers wait for) or ``"device"`` (it issued what it does not complete); None: not known.
        summary: one sentence a person can act on.
    """

    key: str
    category: Category
    group: Group | None
    operation: str
    sequence_id: int | None
    stream: Stream
    culprit_ranks: tuple[int, ...]
    waiting_ranks: tuple[int, ...]
    summary: str
    field: str | None = None
    values: dict[int, str] = dataclasses.field(default_factory=dict)
    call_sites: dict[int, str] = dataclasses.field(default_factory=dict)
    stacks: dict[int, str] = dataclasses.field(default_factory=dict)
    caused_by: str | None = None
    age: float | None = None
    p2p: tuple[int, int, int, int] | None = None
    stuck_on: Literal["host", "device"] | None = None
