"""The rules of the advice for launchers, as one table. They are pure functions of a `History`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypedDict

from otel_fr import semconv
from otel_fr.match import Category
from otel_fr_collector.attribution.facts import Culprit, Fault, History, Place
from otel_fr_collector.incidents.what_to_do import HARDWARE
from otel_fr_collector.jobs.workload import WorkloadRequest

TIMES: Final = 3
"""Runs with the same fault, or with faults of the same node, that make a pattern: twice may be chance."""
MAX_INCIDENTS: Final = 10
"""Incidents that one reason names, the newest last."""
MAX_TEXT: Final = 500

_DEATHS = frozenset(
    one.value for one in (Category.RANK_DEAD, Category.RANK_STUCK, Category.HEARTBEAT_MISSED, Category.SECTION_OVERRUN)
)
_PROGRAM = frozenset(category.value for category in Category if category.is_mismatch) | {
    Category.UNMATCHED_P2P.value,
    Category.DEADLOCK.value,
}
"""Faults of the program: its calls do not match on other nodes either."""


class Recommendation(str, Enum):
    """What to do with the job, the weakest first."""

    RESTART = "restart"
    EXCLUDE_NODE = "exclude_node"
    """Restart without the named nodes."""
    STOP = "stop"


_STRENGTH = {recommendation: number for number, recommendation in enumerate(Recommendation)}


class Found(NamedTuple):
    """The finding of a rule. ``nodes``: the nodes that it excludes."""

    text: str
    incidents: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One row of the table. ``when`` is for readers; docs/guide/fault-tolerance.md has the same text."""

    name: str
    recommendation: Recommendation
    when: str
    find: Callable[[History], Found | None]


class ReasonData(TypedDict):
    """One rule that holds.

    Attributes:
        rule: name of the rule.
        recommendation: `restart`, `exclude_node` or `stop`.
        text: one sentence.
        incident_ids: ids of the incidents that the rule is about.
    """

    rule: str
    recommendation: str
    text: str
    incident_ids: list[str]


@dataclass(frozen=True)
class Advice:
    """The recommendation. ``nodes``: the nodes to exclude, even if the recommendation is to stop the job."""

    recommendation: Recommendation
    nodes: tuple[str, ...]
    reasons: tuple[ReasonData, ...]


def decide(history: History) -> Advice:
    """Apply all rules. The strongest recommendation counts, and every rule that holds is a reason."""
    reasons: list[ReasonData] = []
    strongest, nodes = Recommendation.RESTART, set[str]()
    for rule in RULES:
        found = rule.find(history)
        if found is None:
            continue
        nodes.update(found.nodes)
        strongest = max(strongest, rule.recommendation, key=_STRENGTH.__getitem__)
        reasons.append(
            {
                "rule": rule.name,
                "recommendation": rule.recommendation.value,
                "text": found.text[:MAX_TEXT],
                "incident_ids": list(found.incidents[-MAX_INCIDENTS:]),
            }
        )
    return Advice(strongest, tuple(sorted(nodes)), tuple(reasons))


def _stop_requested(history: History) -> Found | None:
    asked = next((one for one in history.requests if one.action == semconv.WORKLOAD_STOP), None)
    return None if asked is None else Found(_request_text(asked))


def _same_error(history: History) -> Found | None:
    known: dict[tuple[str, str], list[Fault]] = {}
    for fault in history.all:
        for same in {culprit.same for culprit in fault.culprits}:
            if same is not None:
                known.setdefault(same, []).append(fault)
    for fault in history.now:
        for culprit in fault.culprits:
            same = culprit.same
            if same is None or _runs(known[same]) < TIMES:
                continue
            alike = [one for one in known[same] if _same_place(one.place, fault.place)]
            number = _runs(alike)
            if number >= TIMES:
                where = f" at {culprit.site}" if culprit.site else ""
                return Found(f"{_first(culprit)}{where} in {number} runs: it will happen again", _ids(alike))
    return None


def _same_program_fault(history: History) -> Found | None:
    for fault in history.now:
        if fault.category not in _PROGRAM or fault.place is None:
            continue
        alike = [one for one in history.all if (one.category, one.place) == (fault.category, fault.place)]
        number = _runs(alike)
        if number >= TIMES:
            place = f"{fault.place.operation} number {fault.place.number} of group {fault.place.group}"
            return Found(f"{fault.category} in {place} in {number} runs: it is a fault of the program", _ids(alike))
    return None


def _exclusion_requested(history: History) -> Found | None:
    asked = [one for one in history.requests if one.action == semconv.WORKLOAD_EXCLUDE_NODE and one.host]
    if not asked:
        return None
    return Found("; ".join(map(_request_text, asked)), nodes=tuple(sorted({one.host for one in asked})))


def _hardware_error(history: History) -> Found | None:
    for fault in history.now:
        broken = [one for one in fault.culprits if one.node and HARDWARE.search(one.error)]
        if broken:
            nodes = tuple(sorted({one.node for one in broken}))
            return Found(f"the device failed{_on(broken[0].node)}: {_first(broken[0])}", (fault.incident,), nodes)
    return None


def _node_died_often(history: History) -> Found | None:
    nodes: dict[tuple[str, str], set[str]] = {}
    for fault in history.all:
        for culprit in fault.culprits:
            if culprit.node and culprit.same is not None:
                nodes.setdefault(culprit.same, set()).add(culprit.node)
    deaths: dict[str, list[Fault]] = {}
    for fault in history.all:
        own_nodes = fault.nodes
        if fault.category not in _DEATHS or len(own_nodes) != 1:
            continue
        if fault.category == Category.RANK_DEAD.value and all(one.is_stopped for one in fault.culprits):
            continue  # a launcher has stopped the ranks, maybe because a node joins
        # If culprits on other nodes have the same error, it is the program's.
        errors = [one.same for one in fault.culprits if one.same is not None]
        if not any(nodes.get(error, own_nodes) - own_nodes for error in errors):
            deaths.setdefault(next(iter(own_nodes)), []).append(fault)
    now = {fault.run for fault in history.now}
    often = {
        node: own for node, own in deaths.items() if _runs(own) >= TIMES and any(fault.run in now for fault in own)
    }
    if not often:
        return None
    texts = [f"ranks of node {node} died or got stuck in {_runs(own)} runs" for node, own in often.items()]
    incidents = [fault for own in often.values() for fault in own]
    return Found("; ".join(texts), _ids(incidents), tuple(sorted(often)))


def _otherwise(history: History) -> Found | None:
    if not history.now:
        return Found("no incident of this run is known")
    return Found(history.now[0].summary, (history.now[0].incident,))


_STOP, _EXCLUDE = Recommendation.STOP, Recommendation.EXCLUDE_NODE
RULES: Final = (
    Rule("stop_requested", _STOP, "a rank of the run has requested to stop the job", _stop_requested),
    Rule(
        "same_error",
        _STOP,
        "three runs with the same Python error at the same line, and in the same collective if known",
        _same_error,
    ),
    Rule(
        "same_program_fault",
        _STOP,
        "three runs with the same mismatch, deadlock or unmatched message in the same collective",
        _same_program_fault,
    ),
    Rule("exclusion_requested", _EXCLUDE, "a rank of the run has requested to exclude its node", _exclusion_requested),
    Rule(
        "hardware_error",
        _EXCLUDE,
        "a culprit's error names a failed device: uncorrectable ECC, GPU lost, NVLink, some Xid",
        _hardware_error,
    ),
    Rule(
        "node_died_often",
        _EXCLUDE,
        "three runs in which only ranks of one node died (not by SIGTERM) or got stuck, without an error that other"
        " nodes have too",
        _node_died_often,
    ),
    Rule("otherwise", Recommendation.RESTART, "always", _otherwise),
)
"""Every rule that holds is a reason. The strongest recommendation counts: stop, then exclude, then restart."""


def _same_place(one: Place | None, other: Place | None) -> bool:
    """Return whether two places may be the same. After a death, peers may or may not wait in a collective, so a fault
    without a place matches any."""
    return one is None or other is None or one == other


def _runs(faults: Iterable[Fault]) -> int:
    return len({fault.run for fault in faults})


def _first(culprit: Culprit) -> str:
    return culprit.error.partition("\n")[0][:200]


def _request_text(one: WorkloadRequest) -> str:
    return f"rank {one.rank}{_on(one.host)} asked for it: {one.description or 'no reason given'}"


def _on(node: str) -> str:
    return f" on node {node}" if node else ""


def _ids(faults: Iterable[Fault]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fault.incident for fault in sorted(faults, key=lambda fault: fault.detected)))
