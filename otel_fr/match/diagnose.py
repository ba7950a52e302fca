"""The verdict: findings from evidence. Causes first, then what merely follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from otel_fr.match import sentences
from otel_fr.match.endings import culprit_deaths, describe_ending, gave_up_at_store, was_stopped
from otel_fr.match.instances import Instance, InstanceKey, last_calls, line_up
from otel_fr.match.mismatch import Mismatch, first_mismatches, shift_of
from otel_fr.match.model import Call, Category, Ending, Evidence, Finding, State
from otel_fr.match.waiting import Node, build, cycles


def diagnose(evidence: Evidence) -> list[Finding]:
    """All findings of one run at one moment; empty when nothing is wrong or nothing can be decided.

    Causes come first, each followed later by its consequences (`Finding.caused_by` is the cause's key). The result
    depends only on the evidence, not on the order of its parts.
    """
    return _Diagnosis(evidence).run()


@dataclass(slots=True)
class _Diagnosis:
    evidence: Evidence
    instances: dict[InstanceKey, Instance] = field(init=False)
    mismatches: list[Mismatch] = field(init=False)
    deaths: frozenset[int] = field(init=False)
    nodes: dict[InstanceKey, Node] = field(init=False)
    lasts: dict[int, Call] = field(init=False)
    causes: list[Finding] = field(default_factory=list)
    consequences: list[Finding] = field(default_factory=list)
    cause_of: dict[InstanceKey, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.instances = line_up(self.evidence)
        self.mismatches = first_mismatches(self.instances)
        self.deaths = culprit_deaths(self.evidence, self.instances.values())
        self.nodes = build(self.evidence, self.instances, self.mismatches, self.deaths)
        self.lasts = last_calls(self.evidence.calls)

    def run(self) -> list[Finding]:
        self._mismatches()
        self._cycles()
        self._held_up()
        self._all_joined()
        self._downstream()
        self._other_deaths()
        self._missed_meeting()
        self._unexplained_failures()
        return self.causes + self.consequences

    # Causes, strongest evidence first: what ranks brought, then cycles, then who holds whom up.

    def _mismatches(self) -> None:
        for bad in sorted(self.mismatches, key=self._position):
            waiting = {r for n in self.nodes.values() if n.mismatch is bad for r in n.waiting} - set(bad.odd)
            finding = self._finding(
                bad.instance, bad.category, bad.odd, sorted(waiting), sentences.mismatch_text(bad, self._shift(bad))
            )
            finding.field, finding.values = bad.field, dict(sorted(bad.values.items()))
            finding.caused_by = self._same_culprits(bad.odd)
            self._add(finding)
            for key, node in self.nodes.items():
                if node.mismatch is bad:
                    self.cause_of[key] = finding.caused_by or finding.key
            self.cause_of.setdefault(bad.instance.key, finding.caused_by or finding.key)

    def _shift(self, bad: Mismatch) -> str:
        return shift_of(self.instances, bad) if bad.has_majority else ""

    def _position(self, bad: Mismatch) -> tuple[object, ...]:
        """Earlier in the odd rank's own order first; between ranks there is no order, so by name."""
        call = bad.instance.call(bad.odd[0])
        return (bad.odd[0], call.record, bad.instance.name)

    def _cycles(self) -> None:
        for keys in cycles(self.nodes):
            if any(key in self.cause_of or self.nodes[key].dead for key in keys):
                continue
            steps = self._walk(keys)
            sends = [(rank, inst, blocker) for rank, inst, blocker in steps if inst.p2p]
            if len(sends) == 1:
                _, instance, blocker = sends[0]
                culprits: tuple[int, ...] = (blocker,)
                category = Category.UNMATCHED_P2P
                summary = self._unmatched_text(instance, blocker)
            else:
                instance = steps[0][1]
                inside = set(keys)
                culprits = tuple(sorted({rank for key in keys for rank in self._ahead(key, inside)}))
                category, summary = Category.DEADLOCK, sentences.deadlock_text(steps)
            waiting = sorted({rank for key in keys for rank in self.nodes[key].waiting})
            finding = self._finding(instance, category, culprits, waiting, summary)
            self._add(finding)
            self.cause_of.update(dict.fromkeys(keys, finding.key))

    def _walk(self, keys: list[InstanceKey]) -> list[tuple[int, Instance, int]]:
        """The cycle as (rank, where it waits, the member it waits for), from its smallest rank on."""
        inside = set(keys)
        rank = min(r for key in keys for r in self.nodes[key].waiting if self._ahead(key, inside))
        steps: list[tuple[int, Instance, int]] = []
        while rank not in {step[0] for step in steps}:
            key = next(k for k in keys if rank in self.nodes[k].waiting and self._ahead(k, inside))
            blocker = self._ahead(key, inside)[0]
            steps.append((rank, self.nodes[key].instance, blocker))
            rank = blocker
        start = [step[0] for step in steps].index(rank)
        cycle = steps[start:]
        first = min(range(len(cycle)), key=lambda i: cycle[i][0])
        return cycle[first:] + cycle[:first]

    def _ahead(self, key: InstanceKey, inside: set[InstanceKey]) -> list[int]:
        return [rank for rank, targets in sorted(self.nodes[key].next.items()) if inside & set(targets)]

    def _held_up(self) -> None:
        blamed: dict[int, str] = {}
        open_nodes = [n for k, n in self.nodes.items() if k not in self.cause_of and n.culprits and not n.behind]
        # A node that waits for nothing else shows its culprit best; then the smaller group, then the name.
        open_nodes.sort(key=lambda n: (bool(n.targets), len(n.instance.members), n.instance.name))
        for node in open_nodes:
            culprits = [rank for rank in node.culprits if rank not in blamed]
            if not culprits:
                self.cause_of[node.instance.key] = blamed[node.culprits[0]]
                continue
            if node.undecided and not node.dead:
                continue
            category = self._category(node, culprits)
            if category is Category.UNMATCHED_P2P:
                summary = self._unmatched_text(node.instance, culprits[0])
            else:
                summary = sentences.holding_text(
                    self.evidence, node.instance, culprits, node.waiting, self._age(node), self.lasts
                )
            finding = self._finding(node.instance, category, culprits, node.waiting, summary)
            finding.age = self._age(node)
            finding.caused_by = self._same_culprits(culprits)
            self._add(finding)
            self.cause_of[node.instance.key] = finding.caused_by or finding.key
            blamed.update(dict.fromkeys(culprits, self.cause_of[node.instance.key]))

    def _category(self, node: Node, culprits: list[int]) -> Category:
        infos = [self.evidence.ranks.get(rank) for rank in culprits]
        if node.dead:
            return Category.RANK_DEAD
        if any(info is not None and info.python_blocked for info in infos):
            return Category.RANK_STUCK
        return Category.UNMATCHED_P2P if node.instance.p2p else Category.MISSING_RANK

    def _all_joined(self) -> None:
        for key, node in self.nodes.items():
            joined = set(node.instance.members) <= set(node.instance.calls)
            if key in self.cause_of or node.behind or not joined or not node.instance.members:
                continue
            calls = [node.instance.call(rank) for rank in node.instance.members]
            late = _late(calls)
            text = sentences.instance_text(node.instance)
            if late:
                gaps = ", ".join(f"rank {c.rank} {c.gap or 0:.1f} s after its previous call" for c in late)
                culprits = tuple(c.rank for c in late)
                who = f"{sentences.ranks_text(culprits)} came to {text} after the others had given up: {gaps}"
                finding = self._finding(node.instance, Category.STRAGGLER, culprits, node.waiting, who)
            elif any(_is_held_up(c, self.evidence.window) for c in calls) and all(
                c.state is State.UNKNOWN or _is_held_up(c, self.evidence.window) for c in calls
            ):
                failed = sorted({call.error or "error" for call in calls if call.state is State.FAILED})
                how = f"failed ({', '.join(failed)})" if failed else "does not complete"
                summary = f"all members joined {text} with matching arguments, and it {how}{self._waited(node)}"
                finding = self._finding(node.instance, Category.STALLED_COLLECTIVE, (), node.waiting, summary)
            else:
                continue
            finding.age = self._age(node)
            self._add(finding)
            self.cause_of[key] = finding.key

    # Consequences.

    def _downstream(self) -> None:
        for key, node in self.nodes.items():
            cause = self._cause(key)
            if cause is None or any(f.key == node.instance.name for f in self.causes + self.consequences):
                continue
            missing = sorted({*node.next, *node.culprits}) or [
                r for r in node.instance.members if r not in node.waiting
            ]
            text = sentences.instance_text(node.instance)
            summary = f"{sentences.ranks_text(node.waiting)} {sentences.verb(node.waiting, 'waits', 'wait')} in {text}"
            if missing:
                summary += f" for {sentences.ranks_text(missing)}"
            summary += ": a consequence"
            finding = self._finding(node.instance, Category.MISSING_RANK, missing, node.waiting, summary)
            finding.caused_by, finding.age = cause, self._age(node)
            self.consequences.append(finding)

    def _cause(self, key: InstanceKey) -> str | None:
        """The cause an instance leads to, along the wait-for graph."""
        seen: set[InstanceKey] = set()
        todo = [key]
        while todo:
            at = todo.pop(0)
            if at in self.cause_of:
                return self.cause_of[at]
            if at not in seen and at in self.nodes:
                seen.add(at)
                todo.extend(self.nodes[at].targets)
        return None

    def _other_deaths(self) -> None:
        """Ranks that ended by a fault of their own and that no instance tells of."""
        told = {
            rank for finding in self.causes if finding.category is Category.RANK_DEAD for rank in finding.culprit_ranks
        }
        ranks = sorted(self.deaths - told)
        if not ranks:
            return
        lines = [f"rank {rank} {describe_ending(self.evidence.ranks[rank])}" for rank in ranks[:4]]
        if len(ranks) > 4:
            lines.append(f"and {len(ranks) - 4} more")
        finding = Finding(
            key="ranks/" + ",".join(str(rank) for rank in ranks),
            category=Category.RANK_DEAD,
            group=None,
            operation="",
            sequence_id=None,
            stream="collective",
            culprit_ranks=tuple(ranks),
            waiting_ranks=(),
            summary="; ".join(lines),
            caused_by=self.causes[0].key if self.causes else None,
        )
        self._explain(finding, {})
        self._add(finding)

    def _missed_meeting(self) -> None:
        """Ranks that waited at the store in vain (to make a group, say), where no collective tells for whom."""
        ranks = self.evidence.ranks
        gave_up = sorted(r for r, info in ranks.items() if gave_up_at_store(info))
        if self.causes or not gave_up:
            return
        others = sorted({*ranks, *range(self.evidence.world_size or 0)} - set(gave_up))
        # Nobody records who should have come. One other rank: it. Several: some may have had no part in it.
        culprits = others if len(others) == 1 else []
        first = gave_up[0]
        summary = (
            f"{sentences.ranks_text(gave_up)} waited in vain for others at the store:"
            f" rank {first} {describe_ending(ranks[first])}"
        )
        if others:
            where = [sentences.where_text(self.evidence, r, self.lasts.get(r)) for r in others[:4]]
            summary = "; ".join([summary, f"not there: {sentences.ranks_text(others)}", *where])
        finding = Finding(
            key="store",
            category=Category.MISSING_RANK if culprits else Category.STALLED_COLLECTIVE,
            group=None,
            operation="",
            sequence_id=None,
            stream="collective",
            culprit_ranks=tuple(culprits),
            waiting_ranks=tuple(gave_up),
            summary=summary,
        )
        self._explain(finding, {})
        self._add(finding)

    def _unexplained_failures(self) -> None:
        """Ranks that ended because a collective failed, where nothing shows who started it."""
        if self.causes:
            return
        raised = {
            r for r, info in self.evidence.ranks.items() if info.ending is Ending.RAISED and not was_stopped(info)
        }
        for node in self.nodes.values():
            failed = [r for r in node.waiting if r in raised and node.instance.call(r).state is State.FAILED]
            if not failed:
                continue
            told = "; ".join(f"rank {r} {describe_ending(self.evidence.ranks[r])}" for r in failed[:4])
            summary = f"{sentences.instance_text(node.instance)} failed, and nothing shows who started it: {told}"
            finding = self._finding(node.instance, Category.STALLED_COLLECTIVE, (), node.waiting, summary)
            finding.age = self._age(node)
            self._add(finding)
            return

    # Making findings.

    def _add(self, finding: Finding) -> None:
        (self.consequences if finding.caused_by else self.causes).append(finding)

    def _same_culprits(self, culprits: Iterable[int]) -> str | None:
        """The key of a mismatch already found that accuses all of these ranks: one fault, seen again elsewhere."""
        wanted = set(culprits)
        for cause in self.causes:
            if cause.field is not None and wanted <= set(cause.culprit_ranks):
                return cause.key
        return None

    def _finding(
        self, instance: Instance, category: Category, culprits: Iterable[int], waiting: Iterable[int], summary: str
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
            p2p=instance.p2p,
        )
        self._explain(finding, {rank: calls[-1] for rank, calls in instance.calls.items()})
        return finding

    def _explain(self, finding: Finding, calls: Mapping[int, Call]) -> None:
        for rank in sorted({*finding.culprit_ranks, *finding.waiting_ranks}):
            info = self.evidence.ranks.get(rank)
            call = calls.get(rank)
            site = call.site if call is not None else ""
            if rank in self.deaths and info is not None and info.exception_site:
                site = info.exception_site
            if not site and info is not None:
                site = info.exception_site or info.site
            if not site and rank in self.lasts and rank in finding.culprit_ranks:
                site = self.lasts[rank].site
            if site:
                finding.call_sites[rank] = site
            if info is not None and info.stack and rank in finding.culprit_ranks:
                finding.stacks[rank] = info.stack

    def _unmatched_text(self, instance: Instance, blocker: int) -> str:
        text = sentences.instance_text(instance)
        here = next(iter(instance.calls.values()))[-1]
        wanted = "recv" if here.signature.operation == "send" else "send"
        where = sentences.where_text(self.evidence, blocker, self.lasts.get(blocker))
        return f"rank {here.rank} waits in {text}; rank {blocker} never posted the matching {wanted}; {where}"

    def _age(self, node: Node) -> float | None:
        calls = [node.instance.call(rank) for rank in node.waiting]
        ages = [c.duration if c.state is State.FAILED else c.age for c in calls]
        return max((age for age in ages if age is not None), default=None)

    def _waited(self, node: Node) -> str:
        return sentences.waited_text(self._age(node))


def _is_held_up(call: Call, window: float) -> bool:
    """It failed, or is known to have been in flight for longer than ``window`` seconds."""
    return call.state is State.FAILED or (call.state is State.IN_FLIGHT and call.age is not None and call.age >= window)


def _late(calls: list[Call]) -> list[Call]:
    """Calls that came when their peers had already timed out, told by each rank's own clock.

    The peers waited out their timeout; the late rank spent at least that long between its previous call and this one.
    """
    gave_up = [c for c in calls if c.state is State.FAILED and (c.error == "timeout" or _waited_out(c))]
    if not gave_up or len(gave_up) == len(calls):
        return []
    patience = min(c.duration or 0.0 for c in gave_up)
    return [c for c in calls if c not in gave_up and c.gap is not None and patience > 0 and c.gap >= 0.9 * patience]


def _waited_out(call: Call) -> bool:
    return call.timeout is not None and call.duration is not None and call.duration >= 0.95 * call.timeout
