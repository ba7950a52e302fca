"""Ring files of ranks whose monitor did not write a flight-recorder file, read as if it had."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from otel_fr.dumps.contents import DumpContents
from otel_fr.dumps.safe_parse import UnreadableDump, not_opened
from otel_fr.ring import ProcessState, RingFormatError, RingReader

RING = "ring"
"""Why the file of a ring is "written"; a monitor has other reasons."""
_SAME_BOOT_NS = 600 * 1_000_000_000
"""Difference between two measurements of wall minus monotonic clock up to which they are of one boot of a machine."""

_MAX_RING_BYTES = 4 << 30


def read_ring(path: Path) -> tuple[dict[str, Any], int | None]:
    """What a flight-recorder file of this ring would contain, and now on the ring's clock (None: unknown).

    ``written_at`` is when the rank last enqueued or ended a call, so that the newer of a ring and a file of the same
    rank is known.

    Raises:
        UnreadableDump: it cannot be read.
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
        # Its clock is another machine's, or of an earlier boot: the age of its calls is not known.
        del data["otel_fr"]["wall_offset_ns"]
    return {**data, "entries": entries}, contents.now_ns if here else None
