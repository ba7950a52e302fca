"""Attributes of other code that otel-fr replaces, and puts back. Imports nothing but the standard library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def replace(owner: Any, name: str, ours: Any) -> Callable[[], None]:
    """Replace an attribute. Returns what restores it, unless other code has replaced it meanwhile."""
    before = getattr(owner, name)
    setattr(owner, name, ours)

    def restore() -> None:
        if getattr(owner, name, None) is ours:
            setattr(owner, name, before)

    return restore
