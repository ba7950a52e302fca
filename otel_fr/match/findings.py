"""Turns the claims of the rules into findings, with whatever else is known about the ranks concerned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from otel_fr.match.case import Case
from otel_fr.match.facts.calls import gave_up
from otel_fr.match.facts.ranks import CATEGORIES, EXCUSABLE, by_kind, is_excused, may_run
from otel_fr.match.facts.stacks import groups_of
from otel_fr.match.finding import MAX_PLACED_CULPRITS, MAX_PLACED_WAITING, Category, Finding, Hint, StackGroup
from otel_fr.match.model import UNENDED, UNPLACED, Evidence, Group, Overdue, Place
from otel_fr.match.rules import decide
from otel_fr.match.rules.claims import Claim
from otel_fr.match.rules.mismatches import threads_share_group
from otel_fr.match.texts import hints
from otel_fr.match.texts import ranks as rank_texts
from otel_fr.match.texts.hints import MAX_CULPRITS, MAX_DIFFERENT, MAX_PEERS, first_line_texts, left_texts
from otel_fr.match.texts.ranks import MAX_ENDINGS, sharing_text
from otel_fr.presentation import ranks_text, summary_text
from otel_fr.stacks import CallLines, Lines


def diagnose(evidence: Evidence) -> list[Finding]:
    """Return all findings about one run at one moment; empty if nothing is wrong or nothing can be decided.

    Causes come first, their consequences later (`Finding.caused_by` is the cause's key). The result depends only on the
    evidence, not on the order of its parts.
    """
    case = Case(evidence)
    claims = decide(case)
    maker = _Maker(case)
    return [maker.finding(claim) for claim in claims]


def _gave_up(claim: Claim) -> list[int]:
    """Return the waiting ranks whose calls failed at their timeout."""
    instance = claim.instance
    if instance is None:
        return []
    return [rank for rank in claim.waiting if rank in instance.calls and gave_up(instance.call(rank))]


class _Maker:
    def __init__(self, case: Case) -> None:
        self._case = case
        self._overdue = dict(case.overdue)
        """Overdue ranks that no earlier cause has named."""
        self._in_call = {call.rank for call in case.evidence.calls if call.state in UNENDED}
        self._recovering = {call.rank for call in case.evidence.calls if call.left and not call.caught}

    def finding(self, claim: Claim) -> Finding:
        """Turn a claim into a finding. Pass causes in order: only the first that names an overdue rank mentions it."""
        case, instance = self._case, claim.instance
        culprits, blamed = claim.culprits if claim.caused_by is None else (), set(claim.culprits)
        ranks = case.evidence.ranks
        concerned = sorted({*culprits, *claim.waiting}) if claim.caused_by is None else []
        stacks = {rank: ranks[rank].stack for rank in concerned if rank in ranks}
        aborted = [rank for rank in claim.waiting if rank in case.aborted]
        overdue = {rank: self._overdue.pop(rank) for rank in culprits if rank in self._overdue}
        category, (summary, *details) = self._with_overdue(claim, overdue)
        own = {rank: rank_texts.overdue_value(item) for rank, item in sorted(overdue.items())}
        excused = self._excused(culprits) if category in EXCUSABLE else {}
        details += [rank_texts.within_text(*one) for one in list(excused.items())[:MAX_ENDINGS]]
        if aborted:
            details.append(rank_texts.aborted_text(aborted, case.evidence))
        if instance is not None and claim.caused_by is None and claim.rule != threads_share_group.__name__:
            by_threads = list(case.threads.get(instance.group.id, {}).items())[:MAX_ENDINGS]
            advice = "their order can differ from rank to rank. Use one process group per thread"
            details += [f"{sharing_text(instance.group, *one)}: {advice}" for one in by_threads]
        differed: tuple[str, ...] = ()
        if culprits:
            members = sorted(ranks) if instance is None else instance.group.ranks
            differed = hints.divergences(culprits, members, ranks)
            details += filter(None, [*differed, hints.replays_text(culprits, members, ranks)])
        ended = [rank for rank in culprits if not may_run(case.evidence, rank)]
        is_waiting = any(rank in self._in_call and may_run(case.evidence, rank) for rank in claim.waiting)
        sites = {
            rank: site
            for rank in sorted(blamed.union(claim.waiting))
            if (site := self._site(claim, rank, is_culprit=rank in blamed))
        }
        stack_groups = groups_of(concerned, stacks)
        hinted = self._hints(claim, culprits, sites, stack_groups)
        is_lost = bool(culprits) and case.lost.keys() >= set(culprits)
        return Finding(
            key=claim.key,
            rule=claim.rule,
            category=category,
            group=None if instance is None else instance.group,
            operation="" if instance is None else instance.operation,
            sequence_id=None if instance is None else instance.sequence_id,
            stream="collective" if instance is None else instance.stream,
            culprit_ranks=culprits,
            waiting_ranks=claim.waiting if instance is None else instance.with_counted(claim.waiting),
            summary=summary_text(summary),
            details=(*map(summary_text, details), *chain.from_iterable(hinted.values())),
            hints=hinted,
            field=claim.field,
            values={**claim.values, **own},
            call_sites=sites,
            stacks={rank: stacks[rank] for rank in culprits if stacks.get(rank)},
            stack_groups=stack_groups,
            caused_by=claim.caused_by,
            age=claim.age,
            p2p=None if instance is None else instance.p2p,
            stuck_on="lost" if is_lost else claim.stuck_on,
            ended_ranks=tuple(sorted({*aborted, *ended, *_gave_up(claim)})),
            is_waiting=is_waiting,
            is_apart=bool(culprits) and self._recovering.issuperset(culprits),
            is_excused=is_waiting and not aborted and bool(culprits) and len(excused) == len(culprits),
            places=self._places(culprits, claim.waiting),
            differed=differed,
        )

    def _with_overdue(self, claim: Claim, overdue: Mapping[int, Overdue]) -> tuple[Category, Sequence[str]]:
        """Return the category and the sentences of a claim, with sentences about the culprits that are overdue.

        If all culprits are overdue, that is the fault, provided that they are missing or that their monitors ended
        them.
        """
        if not overdue or claim.category in CATEGORIES.values():
            return claim.category, claim.said
        ranks = self._case.evidence.ranks
        is_all = set(overdue) == set(claim.culprits)
        category = claim.category
        ended = category is Category.RANK_DEAD and all(ranks[rank].ended_by_monitor for rank in overdue)
        if is_all and (category is Category.MISSING_RANK or ended):
            category = min((CATEGORIES[item.kind] for item in overdue.values()), key=list(Category).index)
        named = ranks_text if is_all else self._case.machines.named  # if all are, the text after it names the machine
        texts = [rank_texts.overdue_text(alike, ranks, named(alike)) for alike in by_kind(overdue).values()]
        if not is_all:
            return category, [*claim.said, *texts]
        return category, ["; ".join([*texts, claim.said[0]]), *claim.said[1:]]

    def _excused(self, culprits: tuple[int, ...]) -> dict[int, Overdue]:
        """Return the culprits whose program has said that they may take longer, each with its section."""
        infos = (self._case.evidence.ranks.get(rank) for rank in culprits)
        return {one.rank: one.within for one in infos if one is not None and one.within and is_excused(one)}

    def _site(self, claim: Claim, rank: int, *, is_culprit: bool) -> str:
        """Return the line where a culprit or a waiting rank is: of its exception, its call or its thread."""
        case, info = self._case, self._case.evidence.ranks.get(rank)
        if rank in case.deaths and info is not None and info.exception_site:
            return info.exception_site
        if claim.instance is not None and rank in claim.instance.calls and (site := claim.instance.call(rank).site):
            return site
        if info is not None:
            # If its launcher ended the rank, a signal handler raised the exit: info.site says where it was stuck.
            sites = (info.exception_site, info.site) if info.exception else (info.site, info.exception_site)
            if site := sites[0] or sites[1]:
                return site
        return case.lasts[rank].call.site if rank in case.lasts and is_culprit else ""

    def _hints(
        self, claim: Claim, culprits: Sequence[int], sites: Mapping[int, str], stack_groups: Iterable[StackGroup]
    ) -> dict[Hint, tuple[str, ...]]:
        """Return `Finding.hints`."""
        instance, lines = claim.instance, list[str]()
        if instance is not None and instance.stream == "collective":
            lines = self._first_lines(culprits, instance.group)
        found: dict[Hint, list[str]] = {
            "lines": lines,
            "loops": self._left(culprits, claim.waiting, sites, stack_groups),
        }
        return {kind: tuple(map(summary_text, texts)) for kind, texts in found.items() if texts}

    def _first_lines(self, culprits: Sequence[int], group: Group) -> list[str]:
        """Say which calls culprits first made elsewhere than their peers."""
        ranks, named = self._case.evidence.ranks, set(culprits)
        known = [rank for rank in group.ranks if rank in ranks and ranks[rank].lines]
        astray = [rank for rank in known if rank in named][:MAX_CULPRITS]
        if not astray:
            return []
        peers = [rank for rank in known if rank not in named][:MAX_PEERS]
        read: dict[CallLines, Lines] = {}
        lines: dict[int, Lines] = {}
        for rank in (*astray, *peers):
            own = next((one for one in ranks[rank].lines if one.group == group.id), None)
            if own is not None and (own in read or len(read) < MAX_DIFFERENT):
                lines[rank] = read[own] = read.get(own) or own.by_number()
        return list(first_line_texts(lines, group, named))

    def _left(
        self,
        culprits: Sequence[int],
        waiting: Sequence[int],
        sites: Mapping[int, str],
        stack_groups: Iterable[StackGroup],
    ) -> list[str]:
        """Say which culprits have left a loop in which others wait."""
        ranks = self._case.evidence.ranks
        astray = [ranks[rank] for rank in culprits if rank in ranks and ranks[rank].left_loops]
        if not astray:
            return []
        in_call = sorted({*waiting, *self._in_call.intersection(culprits)})
        places = {rank: [sites.get(rank, "")] for rank in in_call}
        for group in stack_groups:
            for rank in places.keys() & set(group.ranks):
                places[rank] += group.frames
        return left_texts(astray, places, [rank for rank in in_call if not may_run(self._case.evidence, rank)])

    def _places(self, culprits: tuple[int, ...], waiting: tuple[int, ...]) -> dict[int, Place]:
        """Return where the ranks run, as far as that is known."""
        wanted = (*culprits[:MAX_PLACED_CULPRITS], *waiting[:MAX_PLACED_WAITING])
        infos = (self._case.evidence.ranks.get(rank) for rank in sorted(set(wanted)))
        return {info.rank: info.place for info in infos if info is not None and info.place != UNPLACED}
