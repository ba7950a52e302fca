"""A tool's answer about a job, and its outcome."""

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
"""Outcomes for a job with a fault."""
HEALTHY: tuple[Outcome, ...] = ("quiet", "false alarm", "crash")
"""Outcomes for a healthy job."""


@dataclass(frozen=True)
class Answer:
    """Attributes:
    kind: "ranks": it names ranks. "silent": it finds nothing, or has nothing to read. "undecided": it reports that
        something is or may be wrong, but names no rank. "crash": it ended by an exception. "not run": it does not
        work in this setting.
    text: its text, cut short. at: when (Unix seconds); None: unknown.
    strayed: other ranks that it named for some time.
    """

    kind: Kind
    ranks: frozenset[int] = frozenset()
    text: str = ""
    at: float | None = None
    strayed: frozenset[int] = frozenset()


def named(ranks: Iterable[int], text: str = "", at: float | None = None, *, otherwise: Kind = "silent") -> Answer:
    """Return an answer with these ranks; without ranks, an answer of the kind ``otherwise``."""
    found = frozenset(ranks)
    return Answer("ranks" if found else otherwise, found, text, at)


def outcome(program: Program, answer: Answer) -> Outcome:
    """Return the outcome of an answer."""
    if answer.kind == "not run":
        return "not run"
    if program.is_healthy:
        if answer.kind == "crash":
            return "crash"
        # A report that something may be wrong wakes nobody up. A named rank does.
        return "false alarm" if answer.kind == "ranks" else "quiet"
    if answer.kind != "ranks":
        return answer.kind
    if answer.ranks in program.culprits:
        return "right"
    return "right and others" if any(right < answer.ranks for right in program.culprits) else "wrong"
