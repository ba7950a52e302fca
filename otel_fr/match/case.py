"""The state of one judgement: the evidence lined up, the findings so far, and how a finding is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from otel_fr.match import decisions, device_sentences, ending_sentences, sentences
from otel_fr.match.aborted import separate
from otel_fr.match.aftermath import first_mismatches
from otel_fr.match.destroyed import set_aside
from otel_fr.match.device_sync import DeviceSyncs
from otel_fr.match.endings import describe_ending
from otel_fr.match.failures import mark_caught, mark_timed_out
from otel_fr.match.gaps import without_gaps
from otel_fr.match.instances import Completions, Instance, InstanceKey, LastCall, last_calls, line_up
from otel_fr.match.machines import Machines
from otel_fr.match.mismatch import Mismatch
from otel_fr.match.model import (
    MAX_PLACED_CULPRITS,
    MAX_PLACED_WAITING,
    UNPLACED,
    Call,
    CallState,
    Category,
    Ending,
    Evidence,
    Finding,
    Place,
)
from otel_fr.match.nodes import Node
from otel_fr.match.queues import is_queued
from otel_fr.match.replays import replays_text
from otel_fr.match.run_on import without_run_on
from otel_fr.match.silence import lost, silence_text
from otel_fr.match.stack_groups import groups_of
from otel_fr.match.steps import Steps, compare_steps
from otel_fr.match.unreached import unreached_texts
from otel_fr.match.waiting import receivers
from otel_fr.operations import other_half
from otel_fr.presentation import summary_text


@dataclass
class Case:
    """The evidence lined up, and the findings so far.

    Attributes:
        deaths: ranks whose ending is a cause; told_deaths: those that a finding about an instance tells of.
        aborted: ranks that were aborted because they waited.
        nodes: the wait-for graph. lasts: rank -> its newest call.
        causes, consequences: the findings, in the order in which they are returned.
        cause_of: instances that a finding explains -> the key of that finding.
        over: keys of the mismatches that hold up no later call.
    """

    evidence: Evidence
    instances: dict[InstanceKey, Instance] = field(init=False)
    mismatches: list[Mismatch] = field(init=False)
    deaths: frozenset[int] = field(init=False)
    aborted: frozenset[int] = field(init=False)
    completions: Completions = field(init=False)
    nodes: dict[InstanceKey, Node] = field(init=False)
    lasts: dict[int, LastCall] = field(init=False)
    causes: list[Finding] = field(default_factory=list)
    consequences: list[Finding] = field(default_factory=list)
    cause_of: dict[InstanceKey, str] = field(default_factory=dict)
    told_deaths: set[int] = field(default_factory=set)
    over: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.evidence = mark_caught(mark_timed_out(without_run_on(without_gaps(set_aside(self.evidence)))))
        self.instances = line_up(self.evidence)
        self.mismatches = first_mismatches(self.evidence, self.instances)
        self.completions = Completions(self.evidence)
        self.deaths, self.aborted, self.nodes = separate(
            self.evidence, self.instances, self.mismatches, self.completions
        )
        self.lasts = last_calls(self.evidence.calls, self.evidence.window)

    @cached_property
    def steps(self) -> Steps:
        """Which ranks cannot have run the same program."""
        fronts = [node.instance for node in self.nodes.values() if node.behind is None]
        return compare_steps(self.evidence, fronts, self.lasts)

    @cached_property
    def unheard(self) -> frozenset[int]:
        """The ranks without evidence, although others wait for them or the run has them."""
        ranks = self.evidence.ranks
        awaited = {rank for node in self.nodes.values() for rank in node.silent}
        return frozenset(
            r for r in awaited.union(ranks) if r not in ranks or (ranks[r].is_unheard and not ranks[r].has_gaps)
        )

    @cached_property
    def receivers(self) -> frozenset[int]:
        """The ranks that receive from any source: which rank should send is not known."""
        return receivers(self.evidence)

    @cached_property
    def syncs(self) -> DeviceSyncs:
        """Which ranks' threads wait for their devices."""
        return DeviceSyncs(self.evidence)

    def sync_texts(self, ranks: Iterable[int]) -> list[str]:
        """Of the first of these ranks whose threads wait for their devices, in what, and what these have not begun."""
        found: list[str] = []
        for rank in ranks:
            what = self.syncs.of(rank)
            if what and len(found) < sentences.MAX_ENDINGS:
                queued = [call for call in self.evidence.calls if call.rank == rank and is_queued(call)]
                first = min(queued, key=lambda call: call.record, default=None)
                found.append(device_sentences.sync_text(self.evidence, rank, what, first))
        return found

    @cached_property
    def lost(self) -> Mapping[int, str]:
        """The ranks of machines that are lost, and the machine of each."""
        return lost(self.evidence)

    @property
    def lasting(self) -> list[Finding]:
        """The causes from which waits and endings may follow."""
        return [cause for cause in self.causes if cause.key not in self.over]

    def add(self, finding: Finding) -> None:
        """Add a cause, or a consequence, whose culprits are those of its cause."""
        if finding.caused_by is None:
            self.causes.append(finding)
            return
        finding.culprit_ranks = ()
        finding.stacks = {}
        self.consequences.append(finding)

    def same_culprits(
        self, culprits: Iterable[int], category: Category | None = None, *, out_of_step: bool = False
    ) -> str | None:
        """The key of a mismatch already found whose culprits include all of these: the same fault seen again.

        One that is over is the same fault only if the culprits are out of step by a call, as if they had ended early.

        Args:
            category: of another mismatch: the same ranks may call wrongly in each of their groups.
            out_of_step: the culprits are known to be.
        """
        wanted = set(culprits)
        infos = [self.evidence.ranks.get(rank) for rank in wanted]
        out_of_step = out_of_step or all(info is not None and info.ending is Ending.CLEAN for info in infos)
        for cause in self.causes:
            if cause.field is None or not wanted <= set(cause.culprit_ranks):
                continue
            if cause.key not in self.over or cause.category is category or (category is None and out_of_step):
                return cause.key
        return None

    def ahead_of_others(self, node: Node, culprits: Iterable[int]) -> str | None:
        """The key of a mismatch that shows the only rank that waits here to be ahead of most others.

        If it waits for more than half of the group, it has reached a call that is not yet due there.
        """
        missing = set(culprits)
        if node.dead or len(node.waiting) != 1 or 2 * len(missing) <= len(node.instance.members):
            return None
        for bad in self.mismatches:
            if bad.has_majority and bad.differing == node.waiting and bad.instance.key in self.cause_of:
                return self.cause_of[bad.instance.key]
        return None

    @cached_property
    def machines(self) -> Machines:
        """On which machines the ranks run."""
        return Machines({rank: info.place for rank, info in self.evidence.ranks.items()})

    def finding(
        self,
        instance: Instance,
        category: Category,
        culprits: Iterable[int],
        waiting: Iterable[int],
        summary: str,
        details: Iterable[str] = (),
    ) -> Finding:
        finding = Finding(
            key=instance.name,
            category=category,
            group=instance.group,
            operation=instance.operation,
            sequence_id=instance.sequence_id,
            stream=instance.stream,
            culprit_ranks=tuple(sorted(culprits)),
            waiting_ranks=tuple(waiting),
            summary=summary,
            details=tuple(details),
            p2p=instance.p2p,
        )
        self.explain(finding, {rank: calls[-1] for rank, calls in instance.calls.items()})
        return finding

    def explain(self, finding: Finding, calls: Mapping[int, Call]) -> None:
        culprits = set(finding.culprit_ranks)
        for rank in sorted(culprits.union(finding.waiting_ranks)):
            info = self.evidence.ranks.get(rank)
            call = calls.get(rank)
            site = call.site if call is not None else ""
            if rank in self.deaths and info is not None and info.exception_site:
                site = info.exception_site
            if not site and info is not None:
                # A rank that its launcher ended left from a handler of the signal; where it was stuck matters.
                sites = (info.exception_site, info.site) if info.exception else (info.site, info.exception_site)
                site = sites[0] or sites[1]
            if not site and rank in self.lasts and rank in culprits:
                site = self.lasts[rank].call.site
            if site:
                finding.call_sites[rank] = site
            if info is not None and info.stack and rank in culprits:
                finding.stacks[rank] = info.stack

    def tell_endings(self) -> None:
        """Add to each finding which of its ranks have ended, and where its ranks are; its details then say which were
        aborted.

        Nothing is added to a summary or to details after this: each becomes one line.
        """
        ranks = self.evidence.ranks
        in_call = {call.rank for call in self.evidence.calls if call.state in (CallState.IN_FLIGHT, CallState.UNKNOWN)}
        for finding in (*self.causes, *self.consequences):
            finding.is_waiting = any(
                rank in in_call and sentences.may_run(self.evidence, rank) for rank in finding.waiting_ranks
            )
            finding.places = self._places(finding)
            if finding.culprit_ranks and self.lost.keys() >= set(finding.culprit_ranks):
                finding.stuck_on = "lost"
            aborted = [rank for rank in finding.waiting_ranks if rank in self.aborted]
            if aborted:
                finding.details += (ending_sentences.aborted_text(aborted, self.evidence),)
            if finding.culprit_ranks and finding.caused_by is None:
                members = finding.group.ranks if finding.group is not None else sorted(ranks)
                found = decisions.divergences(finding.culprit_ranks, members, ranks)
                finding.differed = tuple([(one.name, one.value, one.step) for one in found])
                finding.details += tuple(found.values())
                launched = replays_text(finding.culprit_ranks, members, ranks)
                if launched:
                    finding.details += (launched,)
            finding.summary = summary_text(finding.summary)
            finding.details = tuple([summary_text(text) for text in finding.details])
            ended = [r for r in finding.culprit_ranks if not sentences.may_run(self.evidence, r)]
            finding.ended_ranks = tuple(sorted({*aborted, *ended}))
        for cause in self.causes:
            concerned = {*cause.culprit_ranks, *cause.waiting_ranks} & ranks.keys()
            cause.stack_groups = groups_of(concerned, {rank: ranks[rank].stack for rank in concerned})

    def _places(self, finding: Finding) -> dict[int, Place]:
        """Where the finding's ranks run, as far as it is known."""
        wanted = (*finding.culprit_ranks[:MAX_PLACED_CULPRITS], *finding.waiting_ranks[:MAX_PLACED_WAITING])
        infos = (self.evidence.ranks.get(rank) for rank in sorted(set(wanted)))
        return {info.rank: info.place for info in infos if info is not None and info.place != UNPLACED}

    def unmatched_text(self, instance: Instance, blocker: int, *, has_passed: bool = True) -> tuple[str, list[str]]:
        """A message without its other half, and details. ``has_passed``: the rank that owes it went on without, or
        ended."""
        text = sentences.instance_text(instance)
        here = next(iter(instance.calls.values()))[-1]
        made = here.signature.operation
        wanted = other_half(made)
        where, *details = sentences.where_texts(self.evidence, blocker, self.lasts.get(blocker), instance)
        who = self.machines.named([blocker])
        if blocker in self.unheard:
            failing = f"it is not known whether {who} called the matching {wanted}"
        else:
            doubt = f" (or rank {here.rank} made one {made} too many)" if has_passed else ""
            failing = f"{who} did not call the matching {wanted}{doubt}"
        return f"{failing}: rank {here.rank} waits in {text}; {where}", details

    def joined_texts(self, node: Node, errors: list[str], lost: tuple[int, ...]) -> tuple[str, list[str]]:
        """Of a collective that all members joined, and details. ``lost``: members on machines that are lost."""
        text = sentences.all_joined_text(node.instance, errors, self.age(node))
        if lost:
            return f"{silence_text(self.evidence, lost, self.machines)}; {text}", []
        hosts, details = unreached_texts(self.evidence, node.waiting)
        return f"{hosts}; {text}" if hosts else text, details

    def raised_texts(self, ranks: Iterable[int]) -> list[str]:
        """``"rank 0 raised ValueError: ..."`` of the first of these that raised; none if none did."""
        for rank in ranks:
            info = self.evidence.ranks.get(rank)
            if info is not None and info.exception:
                return [f"rank {rank} {describe_ending(info)}"]
        return []

    def age(self, node: Node) -> float | None:
        calls = [node.instance.call(rank) for rank in node.waiting]
        ages = [c.duration if c.state is CallState.FAILED else c.age for c in calls]
        return max((age for age in ages if age is not None), default=None)
