"""Bearer tokens: which clients may send which jobs' telemetry, and which may read."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from otel_fr_collector.given_files import read_text, stamp_of
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Shortest time between two checks of the file for a change."""
MIN_LENGTH = 16
"""Characters of the shortest token. Shorter ones can be guessed."""
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")


@dataclass(frozen=True)
class Access:
    """What one token allows.

    Attributes:
        prefix: the token is valid for jobs whose names begin with this. Empty: for all jobs.
    """

    read: bool
    write: bool
    prefix: str = ""

    def may_send(self, job: str) -> bool:
        return self.write and job.startswith(self.prefix)

    def may_see(self, job: str) -> bool:
        return self.read and job.startswith(self.prefix)


EVERYTHING = Access(read=True, write=True)


def tenant_of(job: str, prefixes: Iterable[str] = ()) -> str:
    """The tenant of a job: the longest of ``prefixes`` that its name begins with, or the name up to its first ``/``.

    If a name has neither, the tenant is "", which all such jobs share.
    """
    prefix = max((prefix for prefix in prefixes if job.startswith(prefix)), key=len, default="")
    return prefix or (job.partition("/")[0] if "/" in job else "")


def parse_tokens(text: str) -> list[tuple[bytes, Access]]:
    """Parse the tokens file. It has lines ``TOKEN ACCESS JOB-PREFIX``, and comment lines that begin with ``#``.

    TOKEN is the token, or ``sha256:`` and its SHA-256 in hex. ACCESS is ``read``, ``write`` or ``read,write``.
    JOB-PREFIX is ``*`` for every job, or the beginning of the jobs' names.

    Returns:
        The SHA-256 of each token, and what it allows.

    Raises:
        ValueError: a line cannot be used. The message shows no token.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) != 3:
            raise ValueError(f"line {number} is not TOKEN ACCESS JOB-PREFIX")
        token, access_text, prefix = fields
        allowed = set(access_text.split(","))
        if not allowed <= {"read", "write"}:
            raise ValueError(f"line {number}: the access must be read, write or read,write, not {access_text!r}")
        hashed = _HASH.fullmatch(token)
        if hashed is None and len(token) < MIN_LENGTH:
            raise ValueError(f"line {number}: the token has fewer than {MIN_LENGTH} characters")
        digest = bytes.fromhex(hashed[1]) if hashed is not None else hashlib.sha256(token.encode()).digest()
        found.append((digest, Access("read" in allowed, "write" in allowed, "" if prefix == "*" else prefix)))
    return found


class Grant:
    """The right to one stream that stays open.

    Args:
        end: called once when the token no longer allows the stream.

    Attributes:
        revoked: the right was revoked.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self.revoked = False

    def revoke(self) -> None:
        if not self.revoked:
            self.revoked = True
            self._end()


class Tokens:
    """A tokens file, which is read again when it changes. If a change cannot be read, the old tokens stay in use.

    Attributes:
        version: increases with each change that takes effect.

    Raises:
        ValueError: the file cannot be used (`parse_tokens`).
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.version = 0
        self._path = path
        self._lock = threading.Lock()
        self._log = Throttle()
        self._checked = time.monotonic()
        self._stamp = stamp_of(self._path)
        self._grants: dict[tuple[bytes, Access], set[Grant]] = {}
        self._tokens = parse_tokens(read_text(path))
        if not self._tokens:
            _log.warning("%s contains no token, so every client is refused", path)

    def tenant_of(self, job: str) -> str:
        """The tenant of a job: `tenant_of` with the prefixes of the tokens for writing. Each prefix is a tenant."""
        return tenant_of(job, (access.prefix for _, access in self._tokens if access.write))

    def find(self, authorization: str) -> Access | None:
        """Return what an Authorization header allows. None: nothing.

        The header is ``Bearer TOKEN``, or ``Basic`` with the token as password, which browsers can send.
        """
        digest = _digest(authorization)
        if digest is None:
            return None
        self._refresh()
        return self._access(digest)

    @contextlib.contextmanager
    def grant(self, authorization: str, access: Access, end: Callable[[], None]) -> Iterator[Grant]:
        """While the context is open, call ``end`` if the token's access changes or the token is removed.

        Args:
            authorization: the header that was passed to `find`.
            access: the result of `find`.
        """
        key = _digest(authorization) or b"", access
        grant = Grant(end)
        self._grants.setdefault(key, set()).add(grant)
        try:
            yield grant
        finally:
            own = self._grants[key]
            own.discard(grant)
            if not own:
                del self._grants[key]

    def end_revoked(self) -> None:
        """Read the file again if it has changed, and end the streams whose token was removed or allows other things."""
        self._refresh()
        for digest, access in list(self._grants):
            if self._access(digest) != access:
                for grant in list(self._grants[digest, access]):
                    grant.revoke()

    def _access(self, digest: bytes) -> Access | None:
        found = None
        # Compare all tokens, each in constant time, so that the time reveals nothing about them.
        for known, access in self._tokens:
            if hmac.compare_digest(known, digest):
                found = access
        return found

    def _refresh(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._checked < CHECK_SECONDS:
                return
            self._checked = now
            try:
                stamp = stamp_of(self._path)
                if stamp != self._stamp:
                    self._tokens = parse_tokens(read_text(self._path))
                    self._stamp = stamp
                    self.version += 1
                    _log.info("reloaded the tokens from %s", self._path)
            except (OSError, ValueError) as error:
                if self._log.allows(str(error)):
                    _log.error("could not reload the tokens from %s; keeping the old ones: %s", self._path, error)


def _digest(authorization: str) -> bytes | None:
    """SHA-256 of the token in an Authorization header. None: there is no token."""
    scheme, _, value = authorization.partition(" ")
    token = value.strip()
    if scheme.lower() == "basic":
        try:
            token = base64.b64decode(token, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeError, ValueError):
            return None
    elif scheme.lower() != "bearer":
        return None
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest() if token else None
