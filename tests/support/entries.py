"""Columns of calls from single `Entry` objects."""

from __future__ import annotations

from collections.abc import Sequence

from otel_fr.dumps.columns import STATES, CallSite, Entries, Label, Table, codes, floats, indices, integers
from otel_fr.dumps.entry import Entry
from otel_fr.identity import STREAMS
from otel_fr.match import Signature


def entries_of(items: Sequence[Entry]) -> Entries:
    """Return the objects as columns."""
    groups: Table[str] = Table()
    signatures: Table[Signature] = Table()
    labels: Table[Label] = Table()
    call_sites: Table[CallSite] = Table()
    return Entries(
        group=indices([groups[e.group] for e in items]),
        stream=codes([STREAMS.index(e.stream) for e in items]),
        sequence_id=integers([e.sequence_id for e in items]),
        record=integers([e.record for e in items]),
        signature=indices([signatures[e.signature] for e in items]),
        state=codes([STATES.index(e.state) for e in items]),
        label=indices([labels[Label(e.timeout, e.error, e.backend, e.thread)] for e in items]),
        call_site=indices([call_sites[CallSite(e.site, e.frames)] for e in items]),
        pair_index=integers([e.pair_index for e in items]),
        age=floats([e.age for e in items]),
        duration=floats([e.duration for e in items]),
        gap=floats([e.gap for e in items]),
        batch=integers([e.batch for e in items]),
        created=integers([e.created_ns for e in items]),
        started=integers([e.started_ns for e in items]),
        ended=integers([e.ended_ns for e in items]),
        groups=list(groups),
        signatures=list(signatures),
        labels=list(labels),
        call_sites=list(call_sites),
    )
