"""Which messages ranks made equally often in each step, from their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """Of the ranks that are the other end of a message in flight, `Rank.patterns`; nobody asks for those of others."""
    awaited = {peer for own in found for peer in _peers_in_flight(own)}
    for dump, own in zip(dumps, found, strict=True):
        if dump.rank in awaited:
            calls = sorted(_own_calls(dump, own, ids[dump.rank]), key=itemgetter(0))
            patterns = message_patterns(calls)
            ranks[dump.rank].patterns = tuple([MessagePattern(*structs.astuple(one)) for one in patterns])


def _peers_in_flight(own: Messages) -> Iterator[int | None]:
    open_ = own.entries.signature[own.entries.state != COMPLETED]
    return (own.entries.signatures[code].peer for code in np.unique(open_).tolist())


def _own_calls(dump: Dump, own: Messages, ids: Mapping[str, str]) -> Iterator[OwnCall]:
    """Of the newest calls, as many as a monitor looks at."""
    entries, messages = dump.entries, own.entries
    first = int(entries.record.max(initial=0)) + 1 - MAX_RECORDS
    which = np.flatnonzero((entries.stream == COLLECTIVE) & (entries.record >= first))
    columns = entries.record, entries.group, entries.state == COMPLETED, entries.sequence_id
    for record, group, is_completed, number in zip(*[column[which].tolist() for column in columns], strict=True):
        key = entries.groups[group]
        yield OwnCall(record, ids.get(key, key), is_completed, number)
    for (pair, _), positions in own.by_pair().items():
        group, newest = ids.get(pair.group, pair.group), positions[messages.record[positions] >= first]
        states = messages.state[newest] == COMPLETED
        for record, is_completed in zip(messages.record[newest].tolist(), states.tolist(), strict=True):
            yield OwnCall(record, group, is_completed, ends=pair[1:])
