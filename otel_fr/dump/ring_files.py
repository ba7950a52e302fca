"""Ring files of ranks that are no more (or not reached), read as if their monitor had written a file of them."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from otel_fr.dump.contents import Snapshot
from otel_fr.dump.safe_parse import UnreadableDump
from otel_fr.ring import ProcessState, RingFormatError, RingReader, pid_namespace, process_start_ns

_SAME_BOOT_NS = 600 * 1_000_000_000
"""How far two measurements of wall minus monotonic clock may lie apart within one boot of a machine."""

_MAX_RING_BYTES = 4 << 30


def read_ring(path: Path) -> tuple[dict[str, Any], int | None]:
    """The content of a flight-recorder file of this ring, and now on the ring's clock (None: not known).

    ``written_at`` is when the rank last issued or ended a call, so that it can be told from a file of the same rank
    which of them is newer.

    Raises:
        UnreadableDump: it cannot be read.
    """
    try:
        if path.stat().st_size > _MAX_RING_BYTES:
            raise UnreadableDump(f"a ring of more than {_MAX_RING_BYTES >> 30} GiB, as no rank makes one")
        with RingReader.open(path) as reader:
            here = reader.meta.get("host") == socket.gethostname() and _same_boot(reader)
            info: dict[str, Any] = {}
            if here and _gone(reader):
                clean = reader.state == ProcessState.CLEAN
                info["exit"] = {"code": 0, "signal": 0, "clean": clean, "known": False}
            snapshot = Snapshot.from_ring(reader, reason="ring", rank_info=info)
        entries = list(snapshot.entries())
        data = snapshot.header()
    except RingFormatError as error:
        raise UnreadableDump(f"a damaged ring file ({error}); copy it again") from error
    except OSError as error:
        raise UnreadableDump(f"cannot be read: {error.strerror or error}; check its permissions") from error
    times = [group.last_issue_ns for group in snapshot.groups] + [group.last_end_ns for group in snapshot.groups]
    times += [record.ended_ns or record.issued_ns for record in snapshot.records]
    data["otel_fr"]["written_at"] = max(times, default=0) + snapshot.wall_offset_ns
    if not here:
        # Its clock is another machine's, or from before a restart: how long ago its calls were is not known.
        del data["otel_fr"]["wall_offset_ns"]
    return {**data, "entries": entries}, snapshot.now_ns if here else None


def _gone(reader: RingReader) -> bool:
    """The rank's process is known not to be there any more."""
    space = pid_namespace()
    if not space or reader.meta.get("pid_namespace") != space:
        return False  # its pid may be another process' here, or none's
    started = process_start_ns(reader.pid)
    return started is None or (reader.pid_start_ns > 0 and started != reader.pid_start_ns)


def _same_boot(reader: RingReader) -> bool:
    return abs(time.time_ns() - time.monotonic_ns() - reader.wall_offset_ns) < _SAME_BOOT_NS
