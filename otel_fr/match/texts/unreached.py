"""Machines that do not reach each other, as the kernels of ranks show that wait in a collective."""

from __future__ import annotations

from collections.abc import Iterable

from otel_fr.match.facts.machines import names_text
from otel_fr.match.model import Evidence
from otel_fr.presentation import message_text

MAX_PEERS = 4
"""Peers that details name."""


def unreached_texts(evidence: Evidence, ranks: Iterable[int]) -> tuple[str, list[str]]:
    """Of these ranks: ``"hosts n2 and n3 do not reach each other"``, "" if no such hosts are known; and details."""
    known = [evidence.ranks[rank] for rank in ranks if rank in evidence.ranks]
    unreached = [(info, peer) for info in known for peer in info.unreached]
    machine_of = _machines(evidence) if unreached else {}
    pairs: set[tuple[str, str]] = set()
    details: list[str] = []
    for info, peer in unreached:
        own, other = info.place.machine, machine_of.get(peer.rpartition(":")[0].strip("[]"), "")
        if own and other and own != other:
            pairs.add((min(own, other), max(own, other)))
        where = f" ({message_text(other)})" if other else ""
        details.append(f"{message_text(peer)}{where} has not acknowledged what rank {info.rank} sent to it")
    return _pairs_text(pairs), details[:MAX_PEERS]


def _pairs_text(pairs: set[tuple[str, str]]) -> str:
    if not pairs:
        return ""
    common = set.intersection(*map(set, pairs))
    if len(common) == 1:
        others = set().union(*pairs) - common
        return f"host {names_text(common)} does not reach {names_text(others)}"
    return f"hosts {names_text(' and '.join(pair) for pair in pairs)} do not reach each other"


def _machines(evidence: Evidence) -> dict[str, str]:
    """By address, the machine that has it; "" if several have it, as containers may."""
    found: dict[str, str] = {}
    for info in evidence.ranks.values():
        for address in info.addresses:
            if found.setdefault(address, info.place.machine) != info.place.machine:
                found[address] = ""
    return found
