"""Secrets removed from texts that are logged or shown."""

from __future__ import annotations

import re

_SECRETS = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+")
"""Credentials as a library's error may quote them; passwords in URLs are `hide_password`'s."""
_PARAMETERS = re.compile(r"([?&](?:ssl)?password=)[^&\s\"']*")
"""Of the URL of a PostgreSQL database."""


def clean(text: str) -> str:
    """A text without credentials and passwords."""
    return _SECRETS.sub(r"\1 ...", hide_password(text))


def hide_password(text: str) -> str:
    """A text without the user and password that its URLs may contain, also where one has a raw ``/`` or ``@``."""
    return _PARAMETERS.sub(r"\1...", re.sub(r"\S+", _hide, text))


def _hide(word: re.Match[str]) -> str:
    before, separator, url = word[0].partition("://")
    return f"{before}://...@{url.rpartition('@')[2]}" if separator and "@" in url else word[0]
