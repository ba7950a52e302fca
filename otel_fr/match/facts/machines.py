"""On which machines ranks run, how a sentence names the machines, and which of them have fallen silent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from otel_fr.match.model import Evidence, Place, Rank
from otel_fr.presentation import message_text, rank_list, ranks_text

MAX_NAMED = 3
"""Machines that a sentence names one by one."""
MAX_LOCAL = 8
"""Most ranks of a machine whose local ranks a sentence gives. `Finding.places` has more of them."""


class Machines:
    """The machines of one run.

    Args:
        places: rank -> where it runs; ranks whose place is not known may be absent.
        is_whole: ``places`` has every rank, so that all ranks of a machine are known.
    """

    def __init__(self, places: Mapping[int, Place], *, is_whole: bool = True) -> None:
        self._places = places
        self._ranks_of: dict[str, set[int]] = {}
        for rank, place in places.items():
            if place.machine:
                self._ranks_of.setdefault(place.machine, set()).add(rank)
        self._is_whole = is_whole

    def named(self, ranks: Iterable[int]) -> str:
        """``"rank 2 (gpu-17, local rank 3)"``, ``"ranks 8-15 (all of gpu-17)"``, ``"ranks 3, 11 (gpu-16, gpu-17)"``.

        If the machine of one rank is unknown, no machine is named.
        """
        items = sorted(set(ranks))
        where = self._where(items)
        return f"{ranks_text(items)} ({where})" if where else ranks_text(items)

    def each(self, ranks: Sequence[Sequence[int]]) -> list[str]:
        """Return `named` for each set of ranks that one sentence names. If there is only one machine, name it once."""
        if len(self._ranks_of) > 1:
            return [self.named(one) for one in ranks]
        return [self.named(one) if at == 0 else ranks_text(one) for at, one in enumerate(ranks)]

    def _where(self, ranks: list[int]) -> str:
        by_machine: dict[str, list[int]] = {}
        for rank in ranks:
            place = self._places.get(rank)
            if place is None or not place.machine:
                return ""
            by_machine.setdefault(place.machine, []).append(rank)
        names = [message_text(name) for name in sorted(by_machine)]
        is_all = self._is_whole and all(self._ranks_of[name] == set(own) for name, own in by_machine.items())
        if len(by_machine) == 1:
            (own,) = by_machine.values()
            if is_all and len(own) > 1:
                return f"all of {names[0]}" if len(self._ranks_of) > 1 else names[0]
            return ", ".join([names[0], *self._inside(own)])
        shown = names_text(by_machine)
        return f"all of {shown}" if is_all and len(ranks) > len(by_machine) else shown

    def _inside(self, ranks: list[int]) -> list[str]:
        """Pod, local ranks and GPU of ranks of one machine, if they say more than the machine's name and the ranks."""
        places = [self._places[rank] for rank in ranks]
        found: list[str] = []
        pods = {place.pod for place in places if place.pod and place.pod != place.machine}
        if len(pods) == 1 and all(place.pod for place in places):
            found.append(f"pod {message_text(pods.pop())}")
        local = [place.local_rank for place in places if place.local_rank is not None]
        is_plain = local == ranks and (len(self._ranks_of) == 1 or not self._is_whole)
        if len(local) == len(ranks) <= MAX_LOCAL and not is_plain:
            found.append(f"local rank {local[0]}" if len(local) == 1 else f"local ranks {rank_list(local)}")
        if len(places) == 1 and places[0].gpu and places[0].gpu != str(places[0].local_rank):
            found.append(f"GPU {message_text(places[0].gpu)}")
        return found


def names_text(names: Iterable[str]) -> str:
    """``"n1, n2, n3 and 4 more"``: the first `MAX_NAMED` of these machines."""
    items = [message_text(name) for name in sorted(names)]
    return ", ".join(items[:MAX_NAMED]) + (f" and {len(items) - MAX_NAMED} more" if len(items) > MAX_NAMED else "")


def lost(evidence: Evidence) -> Mapping[int, str]:
    """Return the ranks of lost machines, each with its machine.

    A machine is lost if all its ranks have fallen silent, while another machine is still heard of.
    """
    by_machine: dict[str, list[int]] = {}
    heard = set()
    for rank, info in evidence.ranks.items():
        by_machine.setdefault(info.place.machine, []).append(rank)
        if info.heard_at is None:
            heard.add(info.place.machine)
    heard.discard("")
    return {rank: name for name, ranks in by_machine.items() if heard and name and name not in heard for rank in ranks}


def are_silent(evidence: Evidence, ranks: Sequence[int]) -> bool:
    """True if all these ranks were heard of once, and have fallen silent."""
    return all(rank in evidence.ranks and evidence.ranks[rank].heard_at is not None for rank in ranks)


def machines_by_address(ranks: Iterable[Rank]) -> dict[str, str]:
    """Return address -> machine; "" if several machines have the address, as containers may."""
    found: dict[str, str] = {}
    for info in ranks:
        for address in info.addresses:
            if found.setdefault(address, info.place.machine) != info.place.machine:
                found[address] = ""
    return found


def slow_links(ranks: Sequence[Rank]) -> list[tuple[tuple[str, str], float]]:
    """Return (pair of machines, seconds) for each long round trip between two machines; the slowest first.

    Peers outside the job, such as a distant file server, are left out.
    """
    slow = [info for info in ranks if info.round_trips]
    machine_of = machines_by_address(ranks) if slow else {}
    longest: dict[tuple[str, str], float] = {}
    for info in slow:
        for peer, seconds in info.round_trips:
            own, other = info.place.machine, machine_of.get(peer, "")
            if own and other and own != other:
                pair = min(own, other), max(own, other)
                longest[pair] = max(seconds, longest.get(pair, 0.0))
    return sorted(longest.items(), key=lambda item: (-item[1], item[0]))
