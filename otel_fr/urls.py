"""Checks of URLs that users give, and URLs for others to see."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_http_url(text: str) -> bool:
    """Return True for an http or https URL with a host and, if it has one, a valid port."""
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a host in square brackets that is no IPv6 address, a port that is no number
        return False


def without_password(url: str) -> str:
    """Return a URL without user and password, as a link for others."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
