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
    """The kind of a fault; the values are those of the incident's ``category``."""

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
        """Calls of one collective that do not fit together."""
        return self.value.endswith("_mismatch")


MAX_PLACED_CULPRITS = 256
MAX_PLACED_WAITING = 32
"""Ranks whose places a finding names: all culprits of an ordinary fault, and examples of who waits."""


Hint = Literal["lines", "loops"]
"""Kinds of hints: the first call that a culprit made elsewhere, and the loops that it has left."""


class StackGroup(NamedTuple):
    """Ranks whose threads are at the same place. ``frames``: ``"file:line function"``, outermost first."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault, or one consequence of another (`caused_by` is then the other's key).

    Attributes:
        key: identifies the fault; it stays the same as evidence grows.
        rule: name of the rule that made it (`otel_fr.match.rules`).
        operation, sequence_id: of the collective in which the fault shows; "" / None: in none.
        culprit_ranks: the ranks at which the fault originated; () if they are not known, and of a consequence.
        field: what differs ("operation", "input_sizes", "dtype", "root", "reduce_op"), for a mismatch.
        values: rank -> its value of that field, as text; of an overdue rank, what is overdue.
        call_sites: rank -> ``"file:line function"``: the culprits' and the waiting ranks'.
        stacks: rank -> text, for the culprits.
        stack_groups: the culprits and the waiting ranks by the place where they are, most ranks first; () if fewer than
            two of their stacks are known, and of a consequence.
        p2p: (source, destination, tag, pair index), global ranks, where the fault shows in a send or receive.
        age: seconds that the longest waiting rank has waited; None: unknown.
        is_waiting: a waiting rank still waits: it runs, as far as is known, and has a call in flight.
        places: rank -> where it runs: the first `MAX_PLACED_CULPRITS` culprits and `MAX_PLACED_WAITING` waiting ranks.
        stuck_on: what blocks a culprit, or did until its launcher ended it: ``"host"`` (all its calls completed, and it
            does not enqueue the one its peers wait for), ``"device"`` (it enqueued a call that it does not complete) or
            ``"lost"`` (nothing is heard any more of its machine); None: not known.
        ended_ranks: culprits that have ended, and waiting ranks that have given up: their calls timed out, or they were
            aborted while they waited.
        is_apart: its culprits had caught the failure of an earlier call: it does not follow from what caused that.
        is_excused: ranks wait for culprits only that are in sections whose limits have not passed: no fault so far.
        differed: the decisions in which culprits first differed from their peers: (name, value, step).
        summary: one sentence for the user. details: further sentences about the same evidence.
        hints: of the details, those that say where a culprit first differed, by their kind. Evidence of ranks that have
            given up may lack what they rest on; they are true all the same.
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
    differed: tuple[tuple[str, str, int | None], ...] = ()
    details: tuple[str, ...] = ()
    hints: dict[Hint, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def text(self) -> str:
        """The summary and all details."""
        return "; ".join([self.summary, *self.details])

    @property
    def is_slowness(self) -> bool:
        """Ranks come last in many collectives, which all complete: nothing is blocked, and no fault follows from it."""
        return self.category is Category.STRAGGLER and self.sequence_id is None
