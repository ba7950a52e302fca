"""Ranks that have fallen silent: since when nothing is heard of them, and whether nothing is of their machines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from otel_fr.match.machines import MAX_NAMED, Machines
from otel_fr.match.model import Evidence
from otel_fr.presentation import message_text, ranks_text


def lost(evidence: Evidence) -> Mapping[int, str]:
    """The ranks of machines whose ranks have all fallen silent, while another machine is heard of; and the machine."""
    by_machine: dict[str, list[int]] = {}
    heard = set()
    for rank, info in evidence.ranks.items():
        by_machine.setdefault(info.place.machine, []).append(rank)
        if info.heard_at is None:
            heard.add(info.place.machine)
    heard.discard("")
    return {rank: name for name, ranks in by_machine.items() if heard and name and name not in heard for rank in ranks}


def are_silent(evidence: Evidence, ranks: Sequence[int]) -> bool:
    """Whether these ranks were heard of, and are not any more."""
    return all(rank in evidence.ranks and evidence.ranks[rank].heard_at is not None for rank in ranks)


def silence_text(known: Mapping[int, str], evidence: Evidence, ranks: Sequence[int], machines: Machines) -> str:
    """``"n1 is lost: nothing is heard of ranks 2, 3 since 14:03:12 UTC"``; if others of their machines are heard of,
    ``"nothing is heard of rank 3 (n1, local rank 1) since ..."``. ``known``: `lost`."""
    since = moment_text(max(evidence.ranks[rank].heard_at or 0.0 for rank in ranks))
    if not known.keys() >= set(ranks):
        return f"nothing is heard of {machines.named(ranks)} since {since}"
    hosts = sorted({known[rank] for rank in ranks})
    names = ", ".join(message_text(name) for name in hosts[:MAX_NAMED])
    more = f" and {len(hosts) - MAX_NAMED} more" if len(hosts) > MAX_NAMED else ""
    verb = "is" if len(hosts) == 1 else "are"
    return f"{names}{more} {verb} lost: nothing is heard of {ranks_text(ranks)} since {since}"


def moment_text(seconds: float) -> str:
    """``"14:03:12 UTC"`` of a Unix time."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))
