"""The creation of a ring file, and methods of the writer that describe the rank: meta, exceptions, state, counters."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from otel_fr.ring import documents
from otel_fr.ring.activity_writer import ActivityWriter
from otel_fr.ring.decision_writer import DecisionWriter
from otel_fr.ring.files import new_ring
from otel_fr.ring.layout import (
    COUNTERS,
    EXCEPTION_ROOM,
    HEADER_COMPLETE,
    META_ROOM,
    STATUS_COUNTERS,
    STATUS_EXCEPTION,
    STATUS_META,
    STATUS_MONITOR_PID,
    STATUS_SIZE,
    STATUS_STATE,
    THREAD_DOCUMENTS,
    THREAD_ROOM,
    Layout,
    own_header,
)

_W = TypeVar("_W", bound="StatusWriter")


class StatusWriter:
    """Base class of `otel_fr.ring.RingWriter`: the mapping and its status area.

    Attributes:
        path: path of the file.
        activity, decisions: the writers of these sections.
    """

    __slots__ = (
        "_counter_words",
        "_has_exception",
        "_map",
        "_meta_number",
        "_status",
        "_thread_number",
        "_words",
        "activity",
        "decisions",
        "path",
    )

    def __init__(self, path: Path, mapping: mmap.mmap, layout: Layout) -> None:
        """Use `create`. Writes the header into ``mapping``, which is all zeros."""
        self.path = path
        self._map = mapping
        header = own_header(layout)
        mapping[: len(header)] = header
        self._words = memoryview(mapping).cast("Q")
        self._status = layout.status
        self._meta_number = 0
        self._has_exception = False
        self._thread_number = 0
        self.activity = ActivityWriter(mapping, layout.activity)
        self.decisions = DecisionWriter(mapping, layout.decisions)
        counters = (layout.status + STATUS_COUNTERS) // 8
        self._counter_words = {name: counters + index for index, name in enumerate(COUNTERS)}

    @classmethod
    def create(cls: type[_W], folders: Sequence[Path], name: str, capacity: int, meta: Mapping[str, object]) -> _W:
        """Create a ring file in the first of ``folders`` that can hold it.

        The file is ``FOLDER/otel-fr-UID/NAME``, with mode 0600 in a folder of mode 0700. All its space is reserved. If
        the name is taken, the file is ``NAME.1`` and so on: files of other processes are kept.

        Args:
            capacity: how many records are kept. The file takes 96 bytes for each, and 128 more for definitions (at
                least 512 KiB).
            meta: describes the rank; see `set_meta`.

        Raises:
            OSError: no folder can hold the file; each is named with its reason.
            ValueError: capacity or name is out of range.
        """
        layout = Layout.of(capacity)
        with new_ring(folders, name, layout) as (path, mapping):
            writer = cls(path, mapping, layout)
            writer.set_meta(meta)
            writer._words[HEADER_COMPLETE // 8] = 1
            return writer

    def set_meta(self, values: Mapping[str, object]) -> None:
        """Replace the values that describe the rank: JSON of at most 4016 bytes, shortened if longer.

        Two copies are written in turn, so a reader always finds the latest or the previous one complete.
        """
        self._meta_number += 1
        data = documents.pack(values, self._meta_number, META_ROOM)
        start = self._status + STATUS_META[self._meta_number & 1]
        self._map[start : start + len(data)] = data

    def set_exception(self, values: Mapping[str, object]) -> None:
        """Record the main thread's exception, which ends the rank: JSON of at most 8048 bytes, shortened if longer.
        Only the first exception is recorded."""
        if self._has_exception:
            return
        data = documents.pack(values, 1, EXCEPTION_ROOM)
        start = self._status + STATUS_EXCEPTION
        self._map[start : start + len(data)] = data
        self._has_exception = True

    def add_thread_exception(self, values: Mapping[str, object]) -> None:
        """Record an uncaught exception of another thread, which does not end the rank: JSON of at most 4080 bytes,
        shortened if longer. The first three are kept. From the fifth on, each replaces its predecessor."""
        self._thread_number += 1
        data = documents.pack(values, self._thread_number, THREAD_ROOM)
        start = self._status + STATUS_SIZE + (min(self._thread_number, THREAD_DOCUMENTS) - 1) * THREAD_ROOM
        self._map[start : start + len(data)] = data

    def set_state(self, state: int) -> None:
        """Record the state of the rank's process (`ProcessState`)."""
        self._words[(self._status + STATUS_STATE) // 8] = state

    def set_monitor_pid(self, pid: int) -> None:
        """Record which process is the rank's monitor."""
        self._words[(self._status + STATUS_MONITOR_PID) // 8] = pid

    def count(self, name: str, n: int = 1) -> None:
        """Add to one of `COUNTERS`. Raises KeyError for another name."""
        self._words[self._counter_words[name]] += n

    def counted(self, name: str) -> int:
        """Return one of `COUNTERS`."""
        return int(self._words[self._counter_words[name]])

    def close(self) -> None:
        """Close the mapping. The file stays. Later calls of any other method raise ValueError."""
        self.activity.close()
        self.decisions.close()
        self._words.release()
        self._map.close()

    def unlink(self) -> None:
        """Remove the file. Existing mappings stay valid. A missing file is not an error."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
