"""Bearer tokens, and a collector's tokens file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.support.played_job import Sends

WRITER, TEAM, OTHER_TEAM = "writer-0123456789", "team-a-0123456789", "team-b-0123456789"
READER = "reader-0123456789"
TEAM_READER = "team-a-reads-0123456789"


def write_tokens(path: Path) -> Path:
    """Write a tokens file. Some tokens are for all jobs, others only for jobs of team-a or team-b."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hashed = hashlib.sha256(READER.encode()).hexdigest()
    lines = [f"{WRITER} write *", f"{TEAM} write team-a/", f"{OTHER_TEAM} write team-b/"]
    lines += [f"sha256:{hashed} read *", f"{TEAM_READER} read team-a/"]
    path.write_text("# who may do what\n" + "\n".join(lines) + "\n")
    return path


def token_options(folder: Path) -> tuple[str, str]:
    """Return the options of a collector with this file, and write it."""
    return "--tokens", str(write_tokens(folder / "tokens"))


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


class Player:
    """Sends a played job's requests with a token."""

    def __init__(self, collector: Sends, token: str) -> None:
        self.collector, self.token = collector, token

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        return self.collector.send(method, data, metadata=bearer(self.token), **options)
