"""The output of the match engine: findings."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from otel_fr.identity import Stream
from otel_fr.match.model import Group, Place

CategoryName = Literal[
    "missing_rank",
    "op_mismatch",
    "size_mismatch",
    "dtype_mismatch",
    "root_mismatch",
    "reduce_op_mismatch",
    "unmatched_p2p",
    "deadlock",
    "rank_dead",
    "rank_stuck",
    "stalled_collective",
    "straggler",
    "heartbeat_missed",
    "section_overrun",
]
"""The values of `Category`."""


class Category(str, Enum):
    """The kind of a fault. Each value is a value of the incident's ``category``."""

    _value_: CategoryName

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
    HEARTBEAT_MISSED = "heartbeat_missed"
    SECTION_OVERRUN = "section_overrun"

    @property
    def is_mismatch(self) -> bool:
        """True if the fault is that calls of one collective do not fit together."""
        return self.value.endswith("_mismatch")


MAX_PLACED_CULPRITS = 256
MAX_PLACED_WAITING = 32
"""How many ranks a finding gives places for: all culprits of an ordinary fault, and some of the waiting ranks."""


Hint = Literal["lines", "loops"]
"""Kinds of hints. "lines": the first call that a culprit made elsewhere than its peers. "loops": loops that it left."""


class StackGroup(NamedTuple):
    """Ranks whose threads are at the same place. ``frames``: ``"file:line function"``, outermost first."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault, or one consequence of another fault (`caused_by` is then the other's key).

    Attributes:
        key: identifies the fault; it stays the same as evidence grows.
        rule: name of the rule that made the finding (`otel_fr.match.rules`).
        operation, sequence_id: the collective in which the fault shows; "" and None: it shows in none.
        culprit_ranks: the ranks at which the fault originated; () if they are unknown, and for a consequence.
        field: for a mismatch, what differs ("operation", "input_sizes", "dtype", "root", "reduce_op").
        values: rank -> its value of that field, as text; for an overdue rank, what is overdue.
        call_sites: rank -> ``"file:line function"``, for culprits and waiting ranks.
        stacks: rank -> text, for the culprits.
        stack_groups: culprits and waiting ranks, grouped by the place where they are, largest group first; () if fewer
            than two of their stacks are known, and for a consequence.
        p2p: for a fault in a send or receive: (source, destination, tag, pair index), with global ranks.
        age: seconds that the longest waiting rank has waited; None: unknown.
        is_waiting: a waiting rank still waits: it is not known to have ended, and has a call in flight.
        places: rank -> where it runs: the first `MAX_PLACED_CULPRITS` culprits and `MAX_PLACED_WAITING` waiting ranks.
        stuck_on: what blocks a culprit, or blocked it until its launcher ended it. ``"host"``: all its calls completed,
            and it does not enqueue the call that its peers wait for. ``"device"``: it does not complete a call that it
            enqueued. ``"lost"``: its machine sends nothing any more. None: unknown.
        ended_ranks: culprits that have ended, and waiting ranks that have given up: their calls timed out, or they were
            aborted while they waited.
        is_apart: its culprits had caught the failure of an earlier call, so this fault does not follow from the cause
            of that failure.
        is_excused: ranks wait only for culprits in sections whose limits have not passed: no fault so far.
        differed: the details about decisions in which culprits first differed from their peers.
        summary: one sentence for the user.
        details: further sentences about the same evidence.
        hints: by kind, the details that say where a culprit first differed. They remain true even if later evidence, of
            ranks that have given up, no longer shows them.
    """

    key: str
    rule: str
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
    stack_groups: tuple[StackGroup, ...] = ()
    caused_by: str | None = None
    age: float | None = None
    p2p: tuple[int, int, int, int] | None = None
    stuck_on: Literal["host", "device", "lost"] | None = None
    ended_ranks: tuple[int, ...] = ()
    is_waiting: bool = False
    is_apart: bool = False
    is_excused: bool = False
    places: dict[int, Place] = dataclasses.field(default_factory=dict)
    differed: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    hints: dict[Hint, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def text(self) -> str:
        """The summary and all details."""
        return "; ".join([self.summary, *self.details])

    @property
    def is_slowness(self) -> bool:
        """True if ranks come last in many collectives that all complete: nothing is blocked, and no fault follows."""
        return self.category is Category.STRAGGLER and self.sequence_id is None
