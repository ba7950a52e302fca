"""Reads ring files as flight-recorder files, for ranks whose monitor did not write one."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from otel_fr.dumps.contents import DumpContents
from otel_fr.dumps.safe_parse import UnreadableDump, not_opened
from otel_fr.ring import ProcessState, RingFormatError, RingReader

RING = "ring"
"""The ``reason`` of a file that is read from a ring. A monitor's files have other reasons."""
_SAME_BOOT_NS = 600 * 1_000_000_000
"""If two measurements of wall minus monotonic clock differ by less, they are from the same boot of a machine."""

_MAX_RING_BYTES = 4 << 30


def read_ring(path: Path) -> tuple[dict[str, Any], int | None]:
    """The contents that a flight-recorder file of this ring would have, and the present time on the ring's clock.

    The time is None if it is not known. ``written_at`` is when the rank last enqueued or ended a call. It shows whether
    the ring or a file of the same rank is newer.

    Raises:
        UnreadableDump: the ring cannot be read.
    """
    try:
        if path.stat().st_size > _MAX_RING_BYTES:
            raise UnreadableDump(
                f"a ring file of more than {_MAX_RING_BYTES >> 30} GiB, which no rank creates; copy it again"
            )
        with RingReader.open(path) as reader:
            is_same_boot = abs(time.time_ns() - time.monotonic_ns() - reader.wall_offset_ns) < _SAME_BOOT_NS
            here = reader.meta.get("host") == socket.gethostname() and is_same_boot
            info: dict[str, Any] = {}
            if here and reader.has_ended():
                clean = reader.state == ProcessState.CLEAN
                info["exit"] = {"code": 0, "signal": 0, "clean": clean, "known": False}
            contents = DumpContents.from_ring(reader, reason=RING, rank_info=info)
        entries = list(contents.entries())
        data = contents.header()
    except RingFormatError as error:
        raise UnreadableDump(f"a damaged ring file ({error}); copy it again") from error
    except OSError as error:
        raise not_opened(error) from error
    times = [group.last_issue_ns for group in contents.groups] + [group.last_end_ns for group in contents.groups]
    times += [record.ended_ns or record.issued_ns for record in contents.records]
    data["otel_fr"]["written_at"] = max(times, default=0) + contents.wall_offset_ns
    if not here:
        # The ring's clock belongs to another machine or boot, so the age of its calls is not known.
        del data["otel_fr"]["wall_offset_ns"]
    return {**data, "entries": entries}, contents.now_ns if here else None
