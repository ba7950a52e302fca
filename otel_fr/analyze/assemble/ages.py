"""How long calls had been in flight when their file was written."""

from __future__ import annotations

import numpy as np

from otel_fr.dumps.columns import NONE
from otel_fr.dumps.entry import Entry
from otel_fr.dumps.model import Dump


def young_calls(dump: Dump, window: float) -> dict[int, float]:
    """Record -> age in seconds of the calls that were enqueued within ``window`` seconds before the file was written.

    PyTorch's files do not say when they were written, so the file's modification time is used. Copying a file makes
    this time later: ages then become unknown, but no call ever looks younger than it is. otel-fr's files say it. Its
    rings do not, but what a rank stores in its ring does not change the file's modification time.
    """
    created = dump.entries.created
    if created is None or not dump.modified_ns or dump.source == "otel-fr":
        return {}
    age = dump.modified_ns - created
    # A file system's clock is coarser than the rank's: the file may seem some milliseconds older than the call.
    young = (created != NONE) & (np.abs(age) < window * 1e9)
    seconds = np.maximum(age[young], 0) / 1e9
    return dict(zip(dump.entries.record[young].tolist(), seconds.tolist(), strict=True))


def since(dump: Dump, entry: Entry) -> float | None:
    """Seconds from enqueueing a call to writing the file. None: not known.

    `Entry.age` is 0 for a call that its device has not begun.
    """
    written = dump.integer("written_at")
    return None if written is None or entry.created_ns is None else max(0.0, (written - entry.created_ns) / 1e9)
