"""Finds in the files which messages a rank made equally often in each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from operator import itemgetter

import numpy as np
from msgspec import structs

from otel_fr.analyze.assemble.messages import Messages
from otel_fr.dumps.columns import COLLECTIVE, COMPLETED
from otel_fr.dumps.message_patterns import OwnCall, message_patterns
from otel_fr.dumps.model import Dump
from otel_fr.dumps.step_calls import MAX_RECORDS
from otel_fr.match.model import MessagePattern, Rank


def note_patterns(
    dumps: Sequence[Dump], found: Sequence[Messages], ids: Mapping[int, Mapping[str, str]], ranks: Mapping[int, Rank]
) -> None:
    """Set `Rank.patterns` of ranks that are the other end of a message in flight. No rule needs other patterns."""
    awaited = {peer for own in found for peer in _peers_in_flight(own)}
    for dump, own in zip(dumps, found, strict=True):
        if dump.rank in awaited:
            patterns = message_patterns(_own_calls(dump, own, ids[dump.rank]))
            ranks[dump.rank].patterns = tuple([MessagePattern(*structs.astuple(one)) for one in patterns])


def _peers_in_flight(own: Messages) -> Iterator[int | None]:
    open_ = own.entries.signature[own.entries.state != COMPLETED]
    return (own.entries.signatures[code].peer for code in np.unique(open_).tolist())


def _own_calls(dump: Dump, own: Messages, ids: Mapping[str, str]) -> list[OwnCall]:
    """The newest `MAX_RECORDS` calls, as many as a monitor reads, oldest first."""
    entries, messages = dump.entries, own.entries
    first = int(entries.record.max(initial=0)) + 1 - MAX_RECORDS
    which = np.flatnonzero((entries.stream == COLLECTIVE) & (entries.record >= first))
    columns = entries.record, entries.group, entries.state == COMPLETED, entries.sequence_id
    records, groups, states, numbers = [column[which].tolist() for column in columns]
    calls = [*map(OwnCall, records, [ids.get(key := entries.groups[at], key) for at in groups], states, numbers)]
    for (pair, _), positions in own.by_pair().items():
        newest = positions[messages.record[positions] >= first]
        records, states = messages.record[newest].tolist(), (messages.state[newest] == COMPLETED).tolist()
        calls += map(OwnCall, records, repeat(ids.get(pair.group, pair.group)), states, repeat(0), repeat(pair[1:]))
    return sorted(calls, key=itemgetter(0))
