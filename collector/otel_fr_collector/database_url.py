"""Checks the URL of a PostgreSQL database, before anything connects to it or quotes a part of it."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

_HOST = r"(\[[^\[\]]*\]|[^\[\]:,]*)(:\d*)?"
_HOSTS = re.compile(rf"{_HOST}(,{_HOST})*")
_NOT_ENCODED = re.compile(r"\s|%(?![0-9A-Fa-f]{2})|%00")
"""Text that libpq rejects with a message that quotes the password."""


def database_url(text: str) -> str:
    """Return the URL if libpq finds the same user, password and host in it as its author.

    Raises:
        ValueError: it may find others. The message quotes no part of the URL, which may be a part of the password.
    """
    scheme, separator, rest = text.partition("://")
    if scheme not in ("postgresql", "postgres") or not separator:
        raise ValueError("it is not a postgresql:// URL")
    # For libpq, user and password end at the first "/" or "@". It takes what follows for a host.
    user = re.match(r"[^@/]*@", rest)
    place, _, query = rest[user.end() if user else 0 :].partition("?")
    has_parameters = all(re.match(r"[a-z_]+=", one) for one in query.split("&")) if query else True
    if "@" in place or not has_parameters or _NOT_ENCODED.search(text):
        raise ValueError(
            "a part of it cannot be read; in user and password, / is written as %2F, @ as %40, % as %25, a space as %20"
        )
    if "password" in parse_qs(query):
        raise ValueError("the password belongs before the host: postgresql://USER:PASSWORD@HOST/DATABASE")
    if not _HOSTS.fullmatch(place.partition("/")[0]):
        raise ValueError("its host or port cannot be used: postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    return text
