"""A rule, and the stages in which rules are tried: the first rule that has an outcome for a root decides it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from otel_fr.match.case import Case
from otel_fr.match.rules.claims import Claims, Outcome

Root = TypeVar("Root")


@dataclass(frozen=True, slots=True)
class Rule(Generic[Root]):
    """A named rule.

    Attributes:
        name: of `Finding.rule`; it stays the same between versions.
        sentence: when it decides, for docs/concepts/verdicts.md.
        decide: what it makes of a root; it changes nothing.
    """

    name: str
    sentence: str
    decide: Callable[[Case, Claims, Root], Outcome]


@dataclass(frozen=True, slots=True)
class Stage(Generic[Root]):
    """Roots of one kind, and their rules in the order in which they are tried.

    Attributes:
        name: the kind of roots. sentence: which these are.
        roots: they are taken one after the other, so that later ones know what was claimed of earlier ones.
    """

    name: str
    sentence: str
    roots: Callable[[Case, Claims], Iterable[Root]]
    rules: tuple[Rule[Root], ...]
