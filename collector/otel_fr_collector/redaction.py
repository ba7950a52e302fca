"""Secrets removed from texts that are logged or shown."""

from __future__ import annotations

import re

_SECRETS = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+")
"""Credentials as a library's error may quote them; passwords in URLs are `hide_password`'s."""


def clean(text: str) -> str:
    """A text without credentials and passwords."""
    return _SECRETS.sub(r"\1 ...", hide_password(text))


def hide_password(text: str) -> str:
    """A text without the user and password that its URLs may contain."""
    return re.sub(r"(?<=://)[^/@\s]+@", "...@", text)
