"""Cases (one input for one target), and failures that are saved and replayed."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Case:
    """``target``: takes the input. ``data``: the input's bytes. ``more``: JSON-like facts that the target needs."""

    target: str
    data: bytes
    more: dict[str, Any] = field(default_factory=dict)


@dataclass
class Failure:
    """The problem, and the inputs before it, newest last."""

    what: str
    cases: list[Case]


def save(folder: Path, name: str, failure: Failure) -> Path:
    """Write a failure to a file, from which it can be replayed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    cases = [{"target": c.target, "data": base64.b64encode(c.data).decode(), "more": c.more} for c in failure.cases]
    path.write_text(json.dumps({"what": failure.what, "cases": cases}, indent=1))
    return path


def load(path: Path) -> Failure:
    """Read a failure that `save` wrote."""
    found = json.loads(path.read_text())
    cases = [Case(one["target"], base64.b64decode(one["data"]), one["more"]) for one in found["cases"]]
    return Failure(found["what"], cases)
