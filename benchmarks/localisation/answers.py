"""What a tool says of a job, and what that is worth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from benchmarks.localisation.catalogue import Program

Kind = Literal["ranks", "silent", "undecided", "crash", "not run"]
Outcome = Literal[
    "right", "right and others", "wrong", "silent", "undecided", "crash", "quiet", "false alarm", "not run"
]
FAULTY: tuple[Outcome, ...] = ("right", "right and others", "wrong", "silent", "undecided", "crash")
"""Outcomes of a job with a fault."""
HEALTHY: tuple[Outcome, ...] = ("quiet", "false alarm", "crash")
"""Outcomes of a healthy one."""


@dataclass(frozen=True)
class Answer:
    """Attributes:
    kind: "ranks": it names them. "silent": it finds nothing, or has nothing to read. "undecided": it says that
        something is wrong, or may be, and not with whom. "crash": it ended by an exception. "not run": it does not
        work there at all.
    text: what it said, cut short. at: when (Unix seconds); None: not known.
    strayed: other ranks that it named for a time.
    """

    kind: Kind
    ranks: frozenset[int] = frozenset()
    text: str = ""
    at: float | None = None
    strayed: frozenset[int] = frozenset()


def named(ranks: Iterable[int], text: str = "", at: float | None = None, *, otherwise: Kind = "silent") -> Answer:
    """An answer with these ranks; without any, it is of the kind ``otherwise``."""
    found = frozenset(ranks)
    return Answer("ranks" if found else otherwise, found, text, at)


def outcome(program: Program, answer: Answer) -> Outcome:
    """What the answer is worth."""
    if answer.kind == "not run":
        return "not run"
    if program.is_healthy:
        if answer.kind == "crash":
            return "crash"
        # To say that something may be wrong wakes nobody up; to name a rank does.
        return "false alarm" if answer.kind == "ranks" else "quiet"
    if answer.kind != "ranks":
        return answer.kind
    if answer.ranks in program.culprits:
        return "right"
    return "right and others" if any(right < answer.ranks for right in program.culprits) else "wrong"
