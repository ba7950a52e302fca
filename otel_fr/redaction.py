"""Removes secrets from texts that are logged or shown."""

from __future__ import annotations

import re

_SECRETS = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+")
"""Credentials as a library's error may quote them. `hide_password` handles passwords in URLs."""
_PARAMETERS = re.compile(r"([?&](?:ssl)?password=)[^&\s\"']*")
"""In the URL of a PostgreSQL database."""


def clean(text: str) -> str:
    """Return a text without credentials and passwords."""
    return _SECRETS.sub(r"\1 ...", hide_password(text))


def hide_password(text: str) -> str:
    """Return a text without the user and password that its URLs may contain, even with a raw ``/`` or ``@``."""
    return _PARAMETERS.sub(r"\1...", re.sub(r"\S+", _hide, text))


def _hide(word: re.Match[str]) -> str:
    before, separator, url = word[0].partition("://")
    return f"{before}://...@{url.rpartition('@')[2]}" if separator and "@" in url else word[0]
