"""Files that hold only calls in flight: what is not in them has completed.

Recorders can leave out completed calls (PyTorch's ``onlyActive``, which NVRx uses). Nothing in such a file says so, but
it shows: a recorder overwrites its oldest entries, so the record ids in a file have no gaps; all ranks of a job
have buffers of one size, so a file with fewer entries than another one has lost none to overwriting; and a file with
fewer entries than a buffer has room for has lost none either.
"""

from __future__ import annotations

from collections.abc import Sequence

from otel_fr.dumps.model import Dump
from otel_fr.dumps.resolve import sequence_ranges

SMALLEST_BUFFER = 100
"""Entries for which every recorder has room. PyTorch's default is 2,000; one so small would hold less than a step."""


def complete_open_only(dumps: Sequence[Dump]) -> list[Dump]:
    """Recognise the files of a run that hold only calls in flight, and set the progress that this shows.

    Of a group with calls in flight, every collective before the oldest has completed. Of a group without any, all that
    the rank enqueued have completed; how many these are is not known unless the file says so.

    Returns:
        these files; empty unless all files of the recorder are of this kind.
    """
    own = [dump for dump in dumps if dump.source == "pytorch"]
    if not own or not all(dump.all_open for dump in own) or not _has_left_out(own):
        return []
    for dump in own:
        ranges = sequence_ranges(dump.entries)
        for key, group in dump.groups.items():
            found = ranges.get(key)
            group.messages = None  # those that completed are not in the file
            if found is not None and found.oldest is not None:
                group.completed = max(group.completed or 0, found.oldest - 1)
            elif not dump.entries and key in dump.uncounted:
                group.enqueued = group.completed = None
        dump.partial = dump.has_completions = True
    return own


def _has_left_out(dumps: Sequence[Dump]) -> bool:
    """True if a file shows that calls were left out which were not overwritten: it has gaps, or is not full."""
    later = [dump for dump in dumps if dump.recorded and int(dump.entries.record.min()) > 0]
    fewest, most = min(dump.recorded for dump in dumps), max(dump.recorded for dump in dumps)
    if fewest == 0:
        return bool(later)  # a rank that has enqueued nothing would have let no other come so far
    return any(not dump.gapless or dump.recorded < max(most, SMALLEST_BUFFER) for dump in later)
