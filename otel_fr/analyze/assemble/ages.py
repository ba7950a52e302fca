"""For how long calls had been in flight when their file was written."""

from __future__ import annotations

from otel_fr.dumps.entry import Entry
from otel_fr.dumps.model import Dump


def age_of(dump: Dump, entry: Entry, window: float) -> float | None:
    """Seconds for which it has been in flight; None: not known.

    PyTorch's files do not say when they were written, but a file is no older than its file system says: a call that was
    enqueued just before that is young. Copying makes a file newer and the age unknown, never a call younger.
    """
    if entry.age is not None or entry.created_ns is None or not dump.modified_ns:
        return entry.age
    age = (dump.modified_ns - entry.created_ns) / 1e9
    return max(0.0, age) if abs(age) < window else None  # a file system's clock is coarser than a rank's


def since(dump: Dump, entry: Entry) -> float | None:
    """Seconds from the enqueueing of a call to the writing of the file. (`Entry.age` of a call that its device has not
    begun is 0.)"""
    written = dump.integer("written_at")
    return None if written is None or entry.created_ns is None else max(0.0, (written - entry.created_ns) / 1e9)
