"""One input for one target, as it is made, kept and replayed."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Case:
    """``target``: what takes it. ``data``: its bytes. ``more``: what else the target needs, JSON-like."""

    target: str
    data: bytes
    more: dict[str, Any] = field(default_factory=dict)


@dataclass
class Failure:
    """What went wrong, and the inputs that came before, newest last."""

    what: str
    cases: list[Case]


def save(folder: Path, name: str, failure: Failure) -> Path:
    """Write a failure down, to be replayed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    cases = [{"target": c.target, "data": base64.b64encode(c.data).decode(), "more": c.more} for c in failure.cases]
    path.write_text(json.dumps({"what": failure.what, "cases": cases}, indent=1))
    return path


def load(path: Path) -> Failure:
    """The inverse of `save`."""
    found = json.loads(path.read_text())
    cases = [Case(one["target"], base64.b64decode(one["data"]), one["more"]) for one in found["cases"]]
    return Failure(found["what"], cases)
