"""How culprits differed from their peers before the fault: evidence beside a fault, never a fault alone.

Decisions are compared by the steps in which they were made, if the ranks number these alike. Otherwise the n-th
decision of a name is compared with the n-th of the others. Collectives that a CUDA graph replays pass no operator and
no recorder: only the number of replays launched is known.

Ranks may make a call at lines of their own, so a difference in lines alone says nothing. It says something if the rank
had its peers' lines before it, and has them from there on a few calls apart: the rank left out calls, or made too many.
If calls look alike, the difference shows only later. Ranks whose data ends early leave a loop in which others wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from otel_fr.decision_names import EVENTS, GRAPH_REPLAYS
from otel_fr.match.model import Decision, Group, Rank
from otel_fr.match.texts.calls import group_of
from otel_fr.presentation import ranks_by_text, ranks_text, summary_text, verb
from otel_fr.stacks import Lines, Loop

MAX_CULPRITS = 8
"""Culprits of one finding that are compared. If there are more, they have not gone astray one by one."""
MAX_PEERS = 64
"""Peers with which a culprit is compared, so that the work is bounded; all ranks run alike."""
MAX_APART: Final = 8
"""Most calls left out, or made too many, that are recognized."""
MAX_DIFFERENT: Final = 16
"""Different call lists of ranks that are compared, which takes a few hundredths of a second."""
RECENT_STEPS = 1
"""Steps before the present one in which an event counts. An event acts at once: if a function is compiled again, its
rank is late, or makes other calls, in this step. An event without an effect then does not cause a later fault."""
NOTHING = "none"
"""The decision of the peers of a rank that alone had an event."""

_BEFORE = -1
"""Stands for the step of decisions that were made before the first step."""


class Divergence(NamedTuple):
    """A rank's first decision that differs from its peers', which all decided alike. ``step``: the rank's own."""

    name: str
    value: str
    others: str
    step: int | None


class _Run(NamedTuple):
    """Consecutive decisions of equal value. ``at``: position in the rank's own order."""

    at: int
    item: Decision

    @property
    def step(self) -> int:
        return _BEFORE if self.item.step is None else self.item.step

    @property
    def value(self) -> tuple[str, int]:
        return self.item.value, self.item.digest


class _Found(NamedTuple):
    """A difference, its step, and its position in the rank's own order."""

    step: int
    at: int
    divergence: Divergence


def divergences(culprits: Sequence[int], members: Iterable[int], ranks: Mapping[int, Rank]) -> tuple[str, ...]:
    """Return a sentence about each decision in which culprits first went astray.

    Args:
        members: members of the group in which the fault shows, or all ranks that are concerned.
    """
    named = set(culprits)
    peers = [rank for rank in members if rank not in named and rank in ranks and ranks[rank].decisions][:MAX_PEERS]
    found: dict[Divergence, list[int]] = {}
    for rank in culprits[:MAX_CULPRITS]:
        if rank in ranks and ranks[rank].decisions:
            divergence = first_divergence(ranks[rank], [ranks[peer] for peer in peers])
            if divergence is not None:
                found.setdefault(divergence, []).append(rank)
    return tuple([_text(divergence, of, peers) for divergence, of in found.items()])


def _text(divergence: Divergence, ranks: Sequence[int], peers: Sequence[int]) -> str:
    at = "" if divergence.step is None else f" at step {divergence.step}"
    others = "the others" if len(peers) > 1 else ranks_text(peers)
    first = f"the first decision in which {ranks_text(ranks)} differed"
    return f"{first}: {divergence.name}={divergence.value}{at}; {others} {divergence.others}"


def first_divergence(own: Rank, others: Sequence[Rank]) -> Divergence | None:
    """Return the earliest telling difference in the rank's own order, over all names; None: there is none.

    A difference is telling if all peers had decided like the rank before, and all alike where it differs. Decisions
    that ranks always make differently, such as which of them writes the log, are left out.
    """
    found: list[_Found] = []
    for name in dict.fromkeys(item.name for item in own.decisions):
        mine = _runs(own, name)
        theirs = [_Peer(of.step, runs) for of in others if (runs := _runs(of, name)) or name in EVENTS]
        if name in EVENTS:
            one = _by_number(mine, theirs) if own.step is None else _of_events(mine, own.step, theirs)
        elif _has_common_steps(mine, theirs):
            one = _by_step(_Peer(own.step, mine), theirs)
        else:
            one = _by_number(mine, theirs)
        if one is not None:
            found.append(one)
    return min(found, key=lambda one: one[:2]).divergence if found else None


def _runs(rank: Rank, name: str) -> list[_Run]:
    return [_Run(at, item) for at, item in enumerate(rank.decisions) if item.name == name]


# ---- by step


class _Peer(NamedTuple):
    """What a rank decided by one name. ``present``: the step that the rank is in; None: unknown."""

    present: int | None
    runs: Sequence[_Run]

    def values_in(self, step: int) -> Sequence[_Run]:
        """Return the decisions of a step, or the last one before it; empty: unknown."""
        return [run for run in self.runs if run.step == step] or [run for run in self.runs if run.step < step][-1:]

    def has_passed(self, step: int, number: int) -> bool:
        """True if the rank has come as far as another rank's ``number``-th decision, made in this step."""
        is_later = self.present is not None and self.present > step
        return is_later or any(run.step > step or run.item.last >= number for run in self.runs)


def _has_common_steps(mine: Sequence[_Run], theirs: Sequence[_Peer]) -> bool:
    """True if some step is known, and all ranks made the same change, of the same number, in the same step."""
    steps = {(run.item.first, run.value): run.step for run in mine if run.item.first > 1}
    return any(run.item.step is not None for run in mine) and all(
        steps.get((run.item.first, run.value), run.step) == run.step for of in theirs for run in of.runs
    )


def _by_step(own: _Peer, theirs: Sequence[_Peer]) -> _Found | None:
    """Compare decisions of one name by step. Values hold until the next decision: leaving one out is no difference."""
    agreed = False
    for step in sorted({run.step for of in (own, *theirs) for run in of.runs}):
        seen = [one for of in theirs if (one := _compared(own, of, step)) is not None]
        if not seen:
            continue
        if all(mine.value == other.value for mine, other in seen):
            agreed = True
            continue
        if not agreed or len({other.value for _, other in seen}) > 1:
            return None
        mine, other = seen[0]
        shown = None if step == _BEFORE else step
        return _Found(step, mine.at, Divergence(mine.item.name, mine.item.value, other.item.value, shown))
    return None


def _compared(own: _Peer, other: _Peer, step: int) -> tuple[_Run, _Run] | None:
    """Return the first values in which two ranks differ in a step, or the last ones; None: one has not come so far."""
    mine, theirs = own.values_in(step), other.values_in(step)
    if not mine or not theirs:
        return None
    most = min(len(mine), len(theirs))
    at = next((at for at in range(most) if mine[at].value != theirs[at].value), most)
    if at == most and len(mine) == len(theirs):
        return mine[-1], theirs[-1]
    # If a rank has no decision of its own here, its last value holds, provided that it has come this far.
    a, b = mine[min(at, len(mine) - 1)], theirs[min(at, len(theirs) - 1)]
    if (at >= len(mine) or a.step < step) and not own.has_passed(step, b.item.first):
        return None
    if (at >= len(theirs) or b.step < step) and not other.has_passed(step, a.item.first):
        return None
    return a, b


def _of_events(mine: Sequence[_Run], step: int, theirs: Sequence[_Peer]) -> _Found | None:
    """Return a rank's first event, in this step or just before it, that no peer has had in the same step."""
    for run in mine:
        if run.item.step is None or run.step < step - RECENT_STEPS:
            continue
        there = [of for of in theirs if of.present is not None and of.present >= run.step]
        if there and not any(other.step == run.step and other.value == run.value for of in there for other in of.runs):
            return _Found(run.step, run.at, Divergence(run.item.name, run.item.value, NOTHING, run.step))
    return None


# ---- by number


def _by_number(mine: Sequence[_Run], theirs: Sequence[_Peer]) -> _Found | None:
    """Compare decisions of one name by number: the rank's n-th and the others' n-th."""
    numbers = {run.item.first for run in mine} | {run.item.first for of in theirs for run in of.runs}
    agreed = False
    for number in sorted(numbers):
        here = _at(mine, number)
        there = [run for of in theirs if (run := _at(of.runs, number)) is not None]
        if here is None or not there:
            continue
        values = {run.value for run in there}
        if values == {here.value}:
            agreed = True
            continue
        if not agreed or len(values) > 1:
            return None
        # If the rank kept a value while the others changed theirs, the step of its first decision is too early.
        is_first = here.item.first == number
        step = here.step if is_first else max(here.step, there[0].step)
        shown = here.item.step if is_first else None
        return _Found(step, here.at, Divergence(here.item.name, here.item.value, there[0].item.value, shown))
    return None


def _at(runs: Sequence[_Run], number: int) -> _Run | None:
    return next((run for run in runs if run.item.first <= number <= run.item.last), None)


def replays_text(culprits: Sequence[int], members: Iterable[int], ranks: Mapping[int, Rank]) -> str:
    """Compare launched replays of CUDA graphs in one sentence; "": none are known of the culprits, or of peers."""
    own = _launched(culprits, ranks)
    named = set(culprits)
    theirs = _launched([rank for rank in members if rank not in named][:MAX_PEERS], ranks)
    if not own or not theirs:
        return ""
    what = "replays of CUDA graphs launched"
    if len({*own.values(), *theirs.values()}) == 1:
        return f"{what}: {_span(own)} by each of {ranks_text([*own, *theirs])}"
    return f"{what}: {_span(own)} by {ranks_text(own)}, {_span(theirs)} by {ranks_text(theirs)}"


def _launched(some: Iterable[int], ranks: Mapping[int, Rank]) -> dict[int, int]:
    found: dict[int, int] = {}
    for rank in some:
        for item in ranks[rank].decisions if rank in ranks else ():
            if item.name == GRAPH_REPLAYS:
                found[rank] = max(item.last, found.get(rank, 0))
    return found


def _span(launched: Mapping[int, int]) -> str:
    least, most = min(launched.values()), max(launched.values())
    return str(least) if least == most else f"{least} to {most}"


def first_line_texts(lines: Mapping[int, Lines], group: Group, astray: Collection[int]) -> Iterator[str]:
    """``"the first call that rank 3 made elsewhere: number 25 of group default_pg (0), at ...; the others at ..."``.

    Args:
        lines: rank of the group -> its lines.
        astray: ranks that are compared with the others.
    """
    # Peers with equal lines are compared once.
    common = _common({id(own): own for rank, own in lines.items() if rank not in astray}.values())
    found: list[tuple[int, str]] = []
    for rank in sorted(lines.keys() & set(astray)):
        number = _first(lines[rank], common)
        if number is not None:
            here, there = _places(lines[rank][number], common[number])
            found.append((rank, f"number {number} of {group_of(group)}, at {here}; the others at {there}"))
    for text, ranks in ranks_by_text(found).items():
        yield summary_text(f"the first call that {ranks_text(ranks)} made elsewhere: {text}")


def _common(of_peers: Iterable[Lines]) -> Lines:
    """Return the lines where all peers that made a call made it at the same place."""
    found: dict[int, tuple[str, ...]] = {}
    differing: set[int] = set()
    for lines in of_peers:
        for number, place in lines.items():
            if found.setdefault(number, place) != place:
                differing.add(number)
    return {number: place for number, place in found.items() if number not in differing}


def _first(own: Lines, common: Lines) -> int | None:
    """Return the number at which the rank first was elsewhere; None: it never was, or may always have been."""
    both = sorted(own.keys() & common.keys())
    first = next((number for number in both if own[number] != common[number]), None)
    if first is None or first == both[0]:
        return None
    return first if any(_is_apart(own, common, first, calls) for calls in range(1, MAX_APART + 1)) else None


def _is_apart(own: Lines, common: Lines, first: int, calls: int) -> bool:
    """True if from there on the rank was where its peers were ``calls`` later or earlier, and not where they were."""
    later = [place == common[n + calls] for n, place in own.items() if n >= first and n + calls in common]
    if later and all(later):
        return True
    after = [(place, n) for n, place in own.items() if n - calls >= first and n - calls in common]
    is_as_before = all(place == common.get(n, place) for place, n in after)
    return not is_as_before and all(place == common[n - calls] for place, n in after)


def _places(own: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, str]:
    """Return the two lines, or the first lines of their callers that differ."""
    return next((pair for pair in zip(own, other, strict=False) if pair[0] != pair[1]), (own[0], other[0]))


def left_texts(culprits: Sequence[Rank], waiting: Mapping[int, Sequence[str]], ended: Collection[int]) -> list[str]:
    """``"rank 3 has left the loop at train.py:38-44 main, in which ranks 0-2 wait"``.

    Args:
        waiting: rank -> where it waits, or waited: places of its call and of the frames of its stack.
        ended: the ranks in ``waiting`` that no longer wait.
    """
    found: dict[tuple[Loop, tuple[int, ...]], list[int]] = {}
    for info in culprits[:MAX_CULPRITS]:
        for loop in info.left_loops:
            has = cache(loop.has)
            inside = tuple([rank for rank, places in waiting.items() if rank != info.rank and any(map(has, places))])
            if inside:
                found.setdefault((loop, inside), []).append(info.rank)
                break
    return [_left_text(ranks, *which, is_over=set(which[1]) <= set(ended)) for which, ranks in found.items()]


def _left_text(ranks: Sequence[int], loop: Loop, inside: Sequence[int], *, is_over: bool) -> str:
    wait = "waited" if is_over else verb(inside, "waits", "wait")
    text = f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} left the loop at {loop.text}"
    again = " (maybe after entering it again)" if loop.is_nested else ""
    return f"{text}, in which {ranks_text(inside)} {wait}{again}"
