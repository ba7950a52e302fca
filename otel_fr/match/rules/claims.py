"""Claims, which rules make about roots of waits and which become findings; and the stages in which rules are tried."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from otel_fr.match.case import Case
from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.finding import Category
from otel_fr.match.graph.nodes import Node
from otel_fr.match.model import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one rule claims about one root.

    Attributes:
        category, culprits, waiting, field, values, age, stuck_on: as in `Finding`.
        said: the summary, then the details.
        instance: the instance in which the fault shows; None: it shows in none.
        name: identifies the fault; "": its instance does.
        caused_by: key of the claim from which this one follows; None: it is a cause.
        explains: the roots that need no further claim.
        blames: ranks that no further claim names because others wait for them.
        is_over: the fault blocks no later call, so nothing else follows from it.
        rule: name of the rule that made the claim.
    """

    category: Category
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    said: Sequence[str]
    instance: Instance | None = None
    name: str = ""
    field: str | None = None
    values: Mapping[int, str] = dataclasses.field(default_factory=dict)
    age: float | None = None
    stuck_on: Literal["host", "device", "lost"] | None = None
    caused_by: str | None = None
    explains: tuple[InstanceKey, ...] = ()
    blames: tuple[int, ...] = ()
    is_over: bool = False
    rule: str = ""

    @property
    def key(self) -> str:
        return self.name or ("" if self.instance is None else self.instance.name)

    @property
    def cause(self) -> str:
        """The key of the cause: the claim from which this one follows, or this one."""
        return self.caused_by or self.key


def claim_of(node: Node, category: Category, culprits: Iterable[int], said: Sequence[str]) -> Claim:
    """Return a claim about ranks for which others wait in a node."""
    return Claim(
        category=category,
        culprits=tuple(sorted(culprits)),
        waiting=node.waiting,
        said=said,
        instance=node.instance,
        age=node.age,
        explains=(node.instance.key,),
    )


@dataclass(frozen=True, slots=True)
class Follows:
    """These roots follow from a cause that a claim names, so nothing is added."""

    cause: str
    roots: tuple[InstanceKey, ...]


@dataclass(frozen=True, slots=True)
class SetAside:
    """These roots may have another origin, so nobody is named for them."""

    roots: tuple[InstanceKey, ...]


Outcome = Claim | tuple[Claim, ...] | Follows | SetAside | None
"""The result of a rule for a root: claims (an empty tuple leaves the root open), or the reason why none is needed.
None: the rule does not apply."""


@dataclass(slots=True)
class Claims:
    """The claims so far.

    Attributes:
        causes, consequences: in the order in which they were made.
        cause_of: root -> key of the cause that explains it.
        blamed: rank that others wait for -> key of the cause that names it.
        set_aside: roots that may have another origin.
        keys: the keys of all claims.
        decided: name of a rule -> how many roots it has decided.
    """

    causes: list[Claim] = field(default_factory=list)
    consequences: list[Claim] = field(default_factory=list)
    cause_of: dict[InstanceKey, str] = field(default_factory=dict)
    blamed: dict[int, str] = field(default_factory=dict)
    set_aside: set[InstanceKey] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    decided: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[Claim]:
        yield from self.causes
        yield from self.consequences

    @property
    def lasting(self) -> list[Claim]:
        """The causes from which waits and endings may follow."""
        return [cause for cause in self.causes if not cause.is_over]

    @property
    def first_cause(self) -> str | None:
        """The key of the first lasting cause; None: there is none."""
        return next((cause.key for cause in self.lasting), None)

    def take(self, rule: str, outcome: Claim | tuple[Claim, ...] | Follows | SetAside) -> None:
        """Add the outcome of the rule with this name for a root."""
        self.decided[rule] += 1
        if isinstance(outcome, SetAside):
            self.set_aside.update(outcome.roots)
            return
        if isinstance(outcome, Follows):
            for key in outcome.roots:
                self.cause_of.setdefault(key, outcome.cause)
            return
        for found in (outcome,) if isinstance(outcome, Claim) else outcome:
            name = beside(found.key) if found.key in self.keys else found.name
            claim = dataclasses.replace(found, rule=rule, name=name)
            self.keys.add(claim.key)
            (self.causes if claim.caused_by is None else self.consequences).append(claim)
            for key in claim.explains:
                self.cause_of.setdefault(key, claim.cause)
            self.blamed.update(dict.fromkeys(claim.blames, claim.cause))

    def cause_from(self, case: Case, key: InstanceKey) -> str | None:
        """Return the key of the cause that an instance leads to along the wait-for graph, or None."""
        seen: set[InstanceKey] = set()
        todo = [key]
        while todo:
            at = todo.pop(0)
            if at in self.cause_of:
                return self.cause_of[at]
            if at not in seen and at in case.nodes:
                seen.add(at)
                todo.extend(case.nodes[at].targets)
        return None

    def same_culprits(
        self, case: Case, culprits: Iterable[int], category: Category | None = None, *, out_of_step: bool = False
    ) -> str | None:
        """Return the key of a mismatch already claimed whose culprits include all of these: the same fault seen again.

        If that mismatch is over, it is the same fault only if the culprits are out of step by a call, as if they had
        ended early.

        Args:
            category: the category of another mismatch: the same ranks may call wrongly in each of their groups.
            out_of_step: the culprits are known to be out of step.
        """
        wanted = set(culprits)
        out_of_step = out_of_step or all(case.evidence.ending_of(rank) is Ending.CLEAN for rank in wanted)
        for cause in self.causes:
            if cause.field is None or not wanted <= set(cause.culprits):
                continue
            if not cause.is_over or cause.category is category or (category is None and out_of_step):
                return cause.key
        return None


def beside(key: str) -> str:
    """Return the key of a second fault that shows in the same call as the fault with this key."""
    return f"{key}/beside"


Root = TypeVar("Root")

Rule = Callable[[Case, Claims, Root], Outcome]
"""Returns the outcome for a root, and changes nothing. `Finding.rule` is the function's name, which stays the same
between versions. Its docstring is its sentence in docs/concepts/verdicts.md: when it decides."""


@dataclass(frozen=True, slots=True)
class Stage(Generic[Root]):
    """Roots of one kind, and their rules. The first rule that has an outcome for a root decides it.

    Attributes:
        roots: yields them one by one, so that later roots can depend on claims about earlier ones. The stage has the
            function's name, and the function's docstring says which roots these are.
    """

    roots: Callable[[Case, Claims], Iterable[Root]]
    rules: tuple[Rule[Root], ...]


def sentence_of(function: Callable[..., object]) -> str:
    """Return what the document says about a rule, or about a stage's roots."""
    return " ".join((function.__doc__ or "").split())
