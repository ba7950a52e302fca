"""Findings from evidence: the causes first, then what follows from them."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from otel_fr.match import (
    consequences,
    device_sentences,
    ending_sentences,
    not_begun,
    on_host,
    other_origins,
    out_of_step,
    overdue,
    sentences,
    step_sentences,
    unseen_waits,
)
from otel_fr.match.case import Case
from otel_fr.match.cycles import against_the_order, cycles, inverted
from otel_fr.match.device import OpenCalls, StuckDevice, common_device, open_calls, stuck_devices
from otel_fr.match.fronts import fronts
from otel_fr.match.instances import Instance, InstanceKey
from otel_fr.match.joined import gave_up, is_connecting, is_stalled, stragglers
from otel_fr.match.misdirected import MisdirectedMessage, misdirected_message
from otel_fr.match.mismatch import Mismatch, shift_of
from otel_fr.match.mismatch import judge as judge_mismatch
from otel_fr.match.model import Call, CallState, Category, Ending, Evidence, Finding, MessagePattern
from otel_fr.match.new_groups import is_in_another_order, names_of
from otel_fr.match.nodes import Node
from otel_fr.match.order import positions
from otel_fr.match.rivals import Rivals


def diagnose(evidence: Evidence) -> list[Finding]:
    """All findings of one run at one moment; empty when nothing is wrong or nothing can be decided.

    Causes come first, each followed later by its consequences (`Finding.caused_by` is the cause's key). The result
    depends only on the evidence, not on the order of its parts.
    """
    return _Diagnosis(evidence).run()


class _Diagnosis(Case):
    @cached_property
    def open_calls(self) -> dict[int, OpenCalls]:
        return open_calls(self.evidence, self.instances, self.completions)

    def run(self) -> list[Finding]:
        self._mismatches()
        self._cycles()
        self._blocked()
        self._devices()
        self._unknown()
        self._all_joined()
        self._unrecorded()
        consequences.downstream(self)
        consequences.other_deaths(self)
        overdue.find(self)
        consequences.missed_meeting(self)
        consequences.unexplained_failures(self)
        self.tell_endings()
        return self.causes + self.consequences

    # Causes, strongest evidence first: mismatches, then cycles, then which rank blocks which.

    def _mismatches(self) -> None:
        created: dict[str, str] = {}  # c10d's name of a group with two meanings -> the key of the finding
        for bad in self._in_order():
            summary = sentences.mismatch_text(bad, self._shift(bad), self.machines)
            finding = self.finding(bad.instance, bad.category, bad.differing, self._held_up(bad), summary)
            finding.field, finding.values = bad.field, dict(sorted(bad.values.items()))
            own = self.nodes.get(bad.instance.key)
            if own is not None and set(finding.waiting_ranks) <= set(own.waiting):
                finding.age = self.age(own)
                text = sentences.waits_text(self.evidence, bad.instance, finding.waiting_ranks, finding.age)
                finding.summary += f"; {text}" if finding.waiting_ranks else ""
            if bad.instance.stream == "group":
                created.update(dict.fromkeys(names_of(bad.instance), finding.key))
                finding.caused_by = self._explained_by(bad)
            else:
                finding.caused_by = created.get(bad.instance.group.name) or self._explained_by(bad)
            if bad.is_over:
                self.over.add(finding.key)
            self.add(finding)
            for key, node in self.nodes.items():
                if node.mismatch is bad:
                    self.cause_of[key] = finding.caused_by or finding.key
            self.cause_of.setdefault(bad.instance.key, finding.caused_by or finding.key)

    def _held_up(self, bad: Mismatch) -> list[int]:
        """The ranks that wait in it or, if all others went on, in the calls that follow from it."""
        own = self.nodes[bad.instance.key].waiting if bad.instance.key in self.nodes else ()
        behind = {rank for node in self.nodes.values() if node.mismatch is bad for rank in node.waiting}
        return sorted(set(own).difference(bad.differing) or behind.difference(bad.differing))

    def _shift(self, bad: Mismatch) -> str:
        if not bad.has_majority or (bad.instance.stream == "group" and is_in_another_order(self.instances, bad)):
            return ""
        return shift_of(self.instances, bad)

    def _explained_by(self, bad: Mismatch) -> str | None:
        """The key of an earlier mismatch of the same ranks or, without a majority, of ranks without which all agree."""
        found = self.same_culprits(bad.differing, bad.category)
        if found is not None or bad.has_majority:
            return found
        for cause in self.lasting:
            calls = {rank: own for rank, own in bad.instance.calls.items() if rank not in cause.culprit_ranks}
            is_part = 0 < len(calls) < len(bad.instance.calls)
            if is_part and judge_mismatch(replace(bad.instance, calls=calls)) is None:
                return cause.key
        return None

    def _in_order(self) -> list[Mismatch]:
        """The mismatches in the order of the ranks' own calls; those in a group after those in its creation."""
        if len(self.mismatches) < 2:
            return self.mismatches
        found = positions(self.instances, {bad.instance.key for bad in self.mismatches})
        creations = [bad.instance for bad in self.mismatches if bad.instance.stream == "group"]
        created = {name: found[one.key] for one in creations for name in names_of(one)}
        return sorted(
            self.mismatches,
            key=lambda bad: (
                max(found[bad.instance.key], created.get(bad.instance.group.name, 0)),
                bad.instance.stream != "group",
                bad.instance.name,
            ),
        )

    def _cycles(self) -> None:
        for keys in cycles(self.nodes):
            if any(key in self.cause_of or self.nodes[key].dead for key in keys):
                continue
            steps = self._walk(keys)
            details: list[str] = []
            sends = [(rank, inst, blocker) for rank, inst, blocker in steps if inst.p2p]
            skipped = out_of_step.left_out(self.nodes, keys, self.steps)
            if skipped and not all(found.swapped for found in skipped):
                out_of_step.name_in_cycle(self, keys, skipped)
                continue
            minority = out_of_step.swapped(self, skipped) if skipped else against_the_order(self.nodes, keys)
            astray = misdirected_message(self.nodes, keys) if minority is None else None
            if astray is not None:
                instance, culprits, category = astray.astray, astray.culprits, Category.UNMATCHED_P2P
                summary = sentences.misdirected_text(astray, self.machines)
            elif len(sends) == 1 and minority is None:
                caller, instance, blocker = sends[0]
                step = steps[(steps.index(sends[0]) + 1) % len(steps)][1]
                category = Category.UNMATCHED_P2P
                out = self.steps.culprits.intersection((caller, blocker))
                if out == {caller}:
                    culprits = (caller,)
                    summary = step_sentences.one_message_more_text(caller, blocker, instance, step, self.machines)
                elif not out and self._kept_pattern(blocker, instance, step):
                    culprits = (caller,)
                    summary = step_sentences.one_more_text(caller, blocker, instance, step, self.machines)
                elif self.steps.rivals == tuple(sorted((caller, blocker))):
                    culprits = self.steps.rivals
                    summary, details = self.unmatched_text(instance, blocker)
                else:
                    culprits = (blocker,)
                    summary, details = self.unmatched_text(instance, blocker)
            else:
                instance = steps[0][1]
                inside = set(keys)
                in_cycle = tuple(sorted({rank for key in keys for rank in self._ahead(key, inside)}))
                culprits = minority[0] if minority is not None else in_cycle
                category, summary = Category.DEADLOCK, sentences.deadlock_text(steps, minority, self.machines)
            waiting = sorted({rank for key in keys for rank in self.nodes[key].waiting})
            details += self.sync_texts(rank for rank, _, _ in steps)
            finding = self.finding(instance, category, culprits, waiting, summary, details)
            self.add(finding)
            self.cause_of.update(dict.fromkeys(keys, finding.key))

    def _kept_pattern(self, rank: int, message: Instance, step: Instance) -> bool:
        """True if it reached ``step`` after as many of these messages as in the steps before: it left none out."""
        if message.p2p is None or step.stream != "collective":
            return False
        return MessagePattern(rank, message.group.id, *message.p2p[:3], step.group.id) in self.evidence.kept_patterns

    def _walk(self, keys: list[InstanceKey]) -> list[tuple[int, Instance, int]]:
        """The cycle as (rank, where it waits, the member it waits for), starting with its smallest rank.

        An instance that only waits behind another one of the cycle is passed through: its rank waits in that one.
        """
        inside = set(keys)
        key = min((k for k in keys if self._ahead(k, inside)), key=lambda k: self.nodes[k].waiting)
        path: list[InstanceKey] = []
        blockers: dict[InstanceKey, int] = {}
        while key not in path:
            path.append(key)
            node, ahead = self.nodes[key], self._ahead(key, inside)
            if ahead:
                blockers[key] = ahead[0]
            key = next(target for target in (node.next[ahead[0]] if ahead else node.targets) if target in inside)
        cycle = [k for k in path[path.index(key) :] if k in blockers]
        steps: list[tuple[int, Instance, int]] = []
        for before, key in zip([cycle[-1], *cycle], cycle, strict=False):
            node, rank = self.nodes[key], blockers[before]
            steps.append((rank if rank in node.waiting else min(node.waiting), node.instance, blockers[key]))
        first = min(range(len(steps)), key=lambda i: steps[i][0])
        return steps[first:] + steps[:first]

    def _ahead(self, key: InstanceKey, inside: set[InstanceKey]) -> list[int]:
        return [rank for rank, targets in sorted(self.nodes[key].next.items()) if inside & set(targets)]

    def _blocked(self) -> None:
        nodes = (node for key, node in self.nodes.items() if key not in self.cause_of and not node.behind)
        self._blame([node for node in nodes if node.dead or node.idle])

    def _unknown(self) -> None:
        """Ranks without evidence, where nothing else may explain the wait.

        They may wait for a culprit with which they share a group; or a rank that waits for them may be blocked by its
        own device; or other evidence does not fit a fault that began at them.
        """
        nodes = [n for k, n in self.nodes.items() if k not in self.cause_of and n.culprits and not n.behind]
        silent = [node for node in nodes if node.culprits == node.silent]
        for node in silent:  # of a rank that fell silent more is known than of one that never was heard
            node.silent = [rank for rank in node.silent if rank not in self.unheard] or node.silent
        near = [(cause, other_origins.near(self, cause)) for cause in self.lasting] if silent else []
        explained: set[InstanceKey] = set()
        unheard = [node for node in silent if self.unheard.issuperset(node.culprits)]
        for node in unheard:
            self._stragglers_among(node)
        elsewhere = len(self.unheard) == 1 and other_origins.may_have_begun_elsewhere(
            self, self.open_calls, self.unheard
        )
        if elsewhere:
            explained.update(node.instance.key for node in unheard)
        for node in silent:
            if node.instance.key in self.cause_of:
                explained.add(node.instance.key)
                continue
            cause = next((cause for cause, ranks in near if ranks.issuperset(node.silent)), None)
            if cause is not None:
                self.cause_of[node.instance.key] = cause.key
            if cause is not None or other_origins.may_be_stuck(self, self.open_calls, node):
                explained.add(node.instance.key)
        left = [node for node in nodes if node.instance.key not in explained]
        told: list[Node] = []
        untold: list[Node] = []
        for node in left:
            is_untold = len(self.unheard) > 1 and self.unheard.issuperset(node.culprits)
            (untold if is_untold else told).append(node)
        self._blame(told)
        if not self.lasting:
            self._untold(untold)

    def _stragglers_among(self, node: Node) -> None:
        """Name the late ones of those that joined."""
        late = stragglers([node.instance.call(rank) for rank in sorted(node.instance.calls)], self.aborted)
        if late:
            self._stragglers(node, late)

    def _untold(self, nodes: list[Node]) -> None:
        """Ranks wait for ranks without evidence, and these may wait for one another: no rank can be named."""
        for first, rest in fronts({node.instance.key: node for node in nodes}):
            node = self.nodes[first]
            summary = sentences.untold_text(node.instance, node.waiting, self.unheard)
            details = self.raised_texts(node.waiting)
            finding = self.finding(node.instance, Category.MISSING_RANK, (), node.waiting, summary, details)
            finding.age = self.age(node)
            self.add(finding)
            self.cause_of.update(dict.fromkeys([first, *rest], finding.key))

    def _unrecorded(self) -> None:
        """Ranks wait for ranks whose calls are not known: these may have joined, so none is named."""
        found = {
            key: node
            for key, node in self.nodes.items()
            if node.unrecorded
            and key not in self.cause_of
            and not (node.culprits or node.next or node.undecided)
            # If all have joined, they may take minutes.
            and not is_connecting([node.instance.call(rank) for rank in node.instance.calls])
        }
        for first, rest in fronts(found) if not self.lasting else ():
            node = self.nodes[first]
            summary = sentences.unrecorded_text(node.instance, node.waiting, node.unrecorded)
            finding = self.finding(node.instance, Category.MISSING_RANK, (), node.waiting, summary)
            finding.age = self.age(node)
            self.add(finding)
            self.cause_of.update(dict.fromkeys([first, *rest], finding.key))

    def _blame(self, open_nodes: list[Node]) -> None:
        """One finding for each of the culprits' nodes, unless it shows what another finding has said."""
        blamed: dict[int, str] = {}
        rivals = Rivals(self.evidence, self.instances, open_nodes)
        # Nodes that wait for no other show their culprit best; of these, the one that the program reaches first.
        ordered = sorted(
            open_nodes,
            key=lambda n: (
                not n.dead and all(unseen_waits.may_wait(self, rank) for rank in n.culprits),
                bool(n.targets),
                rivals.before(n),
                len(n.instance.members),
                n.instance.name,
            ),
        )
        for node in ordered:
            culprits = [rank for rank in node.culprits if rank not in blamed]
            known = [rank for rank in node.culprits if rank in blamed]
            if not culprits or (known and all(unseen_waits.may_wait(self, rank) for rank in culprits)):
                self.cause_of[node.instance.key] = blamed[known[0]]
                continue
            if node.undecided and not node.dead:
                continue
            unseen = not node.dead and all(unseen_waits.may_wait(self, rank) for rank in node.culprits)
            astray = self._astray(node, culprits)
            extra = [] if node.dead else out_of_step.ranks_beyond(self, node, culprits, unseen=unseen)
            if extra and astray is None:
                if extra[0] not in blamed:
                    out_of_step.name_beyond(self, node, extra)
                    blamed.update(dict.fromkeys(extra, self.cause_of[node.instance.key]))
                self.cause_of[node.instance.key] = blamed[extra[0]]
                continue
            if unseen and self.deaths and not self.lasting:
                continue  # the deaths are the cause, which no instance shows
            if not node.dead:
                culprits = unseen_waits.others(self, culprits)
            if unseen and (same := unseen_waits.name_stall(self, node, culprits)):
                blamed.update(dict.fromkeys(same, self.cause_of[node.instance.key]))
                continue
            category = self._category(node, culprits)
            details: list[str] = []
            if astray is not None and category is Category.UNMATCHED_P2P:
                culprits, summary = list(astray.culprits), sentences.misdirected_text(astray, self.machines)
            elif node.instance.p2p is not None and not node.dead:
                has_passed = category is Category.UNMATCHED_P2P
                summary, details = self.unmatched_text(node.instance, culprits[0], has_passed=has_passed)
            else:
                summary, details = sentences.holding_text(
                    self.evidence, node.instance, culprits, node.waiting, self.age(node), self.lasts, self.machines
                )
                # Ranks that never came; a rank that died while it waited for them does not change that.
                absent = sorted({*node.idle, *node.undecided, *node.next} - set(node.instance.calls))
                if node.dead and absent and set(culprits) <= set(node.instance.calls):
                    details.append(
                        sentences.absent_text(self.evidence, node.instance, absent, self.lasts, self.machines)
                    )
            finding = self.finding(node.instance, category, culprits, node.waiting, summary, details)
            finding.age = self.age(node)
            ahead = self.ahead_of_others(node, culprits)
            finding.caused_by = self.same_culprits(culprits) or ahead
            if node.dead:
                finding.caused_by = finding.caused_by or self._died_in_mismatch(culprits)
                self.told_deaths.update(culprits)
            if self.lasting and unseen:
                finding.caused_by = finding.caused_by or self.lasting[0].key
            if self.unheard.issuperset(culprits):
                finding.details += (sentences.only_unheard_text(node.waiting),)
            if category is Category.MISSING_RANK and all(self.syncs.of(rank) for rank in culprits):
                finding.stuck_on = "device"
                finding.details += tuple(self.sync_texts(culprits))
            elif not node.dead and on_host.are_blocked(self, node, culprits):
                finding.stuck_on = "host"
                finding.details += (ending_sentences.host_text(self.evidence, culprits),)
            self.add(finding)
            self.cause_of[node.instance.key] = finding.caused_by or finding.key
            if ahead is None:
                blamed.update(dict.fromkeys(culprits, self.cause_of[node.instance.key]))

    def _died_in_mismatch(self, ranks: list[int]) -> str | None:
        """The key of a mismatch whose calls these ranks had not ended when they did: backends abort ranks for one."""
        unended = (CallState.IN_FLIGHT, CallState.FAILED)
        for bad in self.mismatches:
            one = bad.instance
            if not bad.is_over and all(r in one.calls and one.call(r).state in unended for r in ranks):
                return self.cause_of.get(one.key)
        return None

    def _astray(self, node: Node, culprits: list[int]) -> MisdirectedMessage | None:
        """The misdirected message in this node, if the culprits ended cleanly and so left no call out."""
        infos = [self.evidence.ranks.get(rank) for rank in culprits]
        if node.instance.p2p is None or any(info is None or info.ending is not Ending.CLEAN for info in infos):
            return None
        if any(n is not node and not set(culprits).isdisjoint(n.culprits) for n in self.nodes.values()):
            return None  # others wait for them too: they ended early
        found = misdirected_message(self.nodes, [key for key in self.nodes if key not in self.cause_of])
        return found if found is not None and found.astray is node.instance else None

    def _category(self, node: Node, culprits: list[int]) -> Category:
        infos = [self.evidence.ranks.get(rank) for rank in culprits]
        if node.dead:
            return Category.RANK_DEAD
        if any(info is not None and info.python_blocked for info in infos):
            return Category.RANK_STUCK
        if node.instance.p2p is None or all(on_host.is_in_no_call(self, rank, node.instance) for rank in culprits):
            return Category.MISSING_RANK
        return Category.UNMATCHED_P2P

    def _devices(self) -> None:
        spared = {*(rank for finding in self.lasting for rank in finding.culprit_ranks), *self.deaths}
        found = stuck_devices(self.evidence, self.instances, self.nodes, self.open_calls, spared, self.cause_of)
        stuck_ranks = {stuck.rank for stuck in found}
        by_first: dict[InstanceKey, list[StuckDevice]] = {}
        for stuck in found:
            by_first.setdefault(stuck.first, []).append(stuck)
        explained = frozenset(self.cause_of)
        for key, alike in by_first.items():
            instance, culprits = self.instances[key], [stuck.rank for stuck in alike]
            behind = [k for stuck in alike for k in stuck.behind if k in self.nodes and k not in explained]
            waiting = sorted({r for k in behind for r in self.nodes[k].waiting} - stuck_ranks)
            others = dict.fromkeys(id_ for stuck in alike for id_ in stuck.groups if id_ != instance.group.id)
            shared = [self.evidence.groups[id_] for id_ in others]
            summary, details = device_sentences.device_text(
                instance, culprits, alike[0].ahead, waiting, shared, self.machines
            )
            finding = self.finding(instance, Category.RANK_STUCK, culprits, waiting, summary, details)
            finding.stuck_on = "device"
            finding.age = self.age(self.nodes[key]) if key in self.nodes else None
            self.add(finding)
            for k in behind:
                self.cause_of.setdefault(k, finding.key)
        not_begun.name_devices(self)

    def _all_joined(self) -> None:
        stalled: list[InstanceKey] = []
        for key, node in self.nodes.items():
            joined = set(node.instance.members) <= set(node.instance.calls)
            if key in self.cause_of or node.behind or not joined or not node.instance.members:
                continue
            calls = [node.instance.call(rank) for rank in node.instance.members]
            late = stragglers(calls, self.aborted)
            if late:
                self._stragglers(node, late)
            elif is_connecting(calls):
                continue
            elif is_stalled(calls, self.evidence, self.aborted):
                stalled.append(key)
        for first, rest in fronts({key: self.nodes[key] for key in stalled}):
            if out_of_step.name_in_stall(self, [first, *rest]):
                continue
            turned = inverted([self.nodes[key] for key in (first, *rest)])
            if (
                turned is None
                and not self.lasting
                and (out_of_step.name_rivals(self, [first, *rest]) or self._common_device([first, *rest]))
            ):
                continue
            node = self.nodes[first]
            calls = [node.instance.call(rank) for rank in node.instance.members]
            failed = sorted({call.error or "error" for call in calls if call.state is CallState.FAILED})
            culprits = tuple(rank for rank in node.instance.members if rank in self.lost)
            summary, details = self.joined_texts(node, failed, culprits)
            details += self.raised_texts(node.waiting) if failed else []
            category = Category.STALLED_COLLECTIVE
            if turned is not None:
                culprits = tuple(rank for rank in turned[2:] if rank in self.steps.culprits) or turned[2:]
                text = sentences.inverted_text(*turned, self.machines, culprits)
                category, summary, details = Category.DEADLOCK, text, [summary, *details]
            finding = self.finding(node.instance, category, culprits, node.waiting, summary, details)
            finding.age = self.age(node)
            finding.caused_by = None if finding.culprit_ranks else self._broken_by(calls)
            self.add(finding)
            self.cause_of.update(dict.fromkeys([first, *rest], finding.caused_by or finding.key))

    def _broken_by(self, calls: list[Call]) -> str | None:
        """The key of the fault by which a member of these calls ended, which broke the others' connections to it."""
        if not any(call.state is CallState.FAILED and not gave_up(call) for call in calls):
            return None
        infos = {call.rank: self.evidence.ranks.get(call.rank) for call in calls}
        ended = {
            rank
            for rank, info in infos.items()
            if info is not None and info.ending in (Ending.KILLED, Ending.RAISED, Ending.GONE)
        }
        found = (cause for cause in self.lasting if ended.intersection(cause.culprit_ranks + cause.waiting_ranks))
        return next((cause.key for cause in found), None)

    def _common_device(self, keys: list[InstanceKey]) -> bool:
        """Add the rank whose device blocks all these instances, which all members joined; False: it is not known."""
        instances = [self.nodes[key].instance for key in keys]
        if self.steps.shared or self.steps.alike:
            return False  # then it is the order of calls
        found = common_device(self.evidence, instances)
        if found is None:
            return False
        rank, first = found
        waiting = [r for r in self.nodes[first.key].waiting if r != rank]
        summary = device_sentences.common_text(rank, first, len(instances), waiting, self.machines)
        finding = self.finding(first, Category.RANK_STUCK, (rank,), waiting, summary)
        finding.stuck_on, finding.age = "device", self.age(self.nodes[first.key])
        self.add(finding)
        self.cause_of.update(dict.fromkeys(keys, finding.key))
        return True

    def _stragglers(self, node: Node, late: list[Call]) -> None:
        culprits = tuple(c.rank for c in late)
        summary = sentences.straggler_text(node.instance, late, self.machines)
        waiting = [rank for rank in node.waiting if rank not in culprits]
        finding = self.finding(node.instance, Category.STRAGGLER, culprits, waiting, summary)
        finding.age = self.age(node)
        self.add(finding)
        self.cause_of[node.instance.key] = finding.key
