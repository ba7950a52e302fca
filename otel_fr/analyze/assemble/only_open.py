"""Recognises files that contain only calls in flight. All other calls of their ranks have completed.

Recorders can leave out completed calls (PyTorch's ``onlyActive``, which NVRx uses). The file does not say so, but
these facts show it:

* A recorder overwrites its oldest entries, so the record ids in a complete file have no gaps.
* All ranks of a job have buffers of the same size, so a file with fewer entries than another has overwritten none.
* A file with fewer entries than the smallest buffer has overwritten none either.
"""

from __future__ import annotations

from collections.abc import Sequence

from otel_fr.dumps.model import Dump
from otel_fr.dumps.resolve import sequence_ranges

SMALLEST_BUFFER = 100
"""Entries that fit into every recorder's buffer. PyTorch's default is 2,000; 100 would be less than a step."""


def complete_open_only(dumps: Sequence[Dump]) -> list[Dump]:
    """Recognise the files of a run that contain only calls in flight, and set the progress that follows from that.

    If a group has calls in flight, every collective before the oldest one has completed. If it has none, all
    enqueued collectives have completed; their number is not known unless the file contains it.

    Returns:
        These files. Empty unless all of PyTorch's files are of this kind.
    """
    own = [dump for dump in dumps if dump.source == "pytorch"]
    if not own or not all(dump.all_open for dump in own) or not _has_left_out(own):
        return []
    for dump in own:
        ranges = sequence_ranges(dump.entries)
        for key, group in dump.groups.items():
            found = ranges.get(key)
            group.messages = None  # completed messages are not in the file
            if found is not None and found.oldest is not None:
                group.completed = max(group.completed or 0, found.oldest - 1)
            elif not dump.entries and key in dump.uncounted:
                group.enqueued = group.completed = None
        dump.partial = dump.has_completions = True
    return own


def _has_left_out(dumps: Sequence[Dump]) -> bool:
    """Return whether a file lacks calls that were not overwritten: it has gaps, or its buffer was not full."""
    later = [dump for dump in dumps if dump.recorded and int(dump.entries.record.min()) > 0]
    fewest, most = min(dump.recorded for dump in dumps), max(dump.recorded for dump in dumps)
    if fewest == 0:
        return bool(later)  # if a rank had enqueued nothing, the others could not have come so far
    return any(not dump.gapless or dump.recorded < max(most, SMALLEST_BUFFER) for dump in later)
