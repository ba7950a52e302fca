"""What a run of this suite found, as text that a person puts into tests/gpu/README.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One test.

    Attributes:
        outcome: passed, failed or skipped. why: it was skipped, or the last line of what failed.
        found: what it measured, by name (``record_property``).
    """

    name: str
    outcome: str
    seconds: float
    why: str = ""
    found: Mapping[str, str] = field(default_factory=dict)


def text(rows: Iterable[Row], machine: Mapping[str, Any], date: str, command: str) -> str:
    """A section in Markdown.

    Args:
        machine: torch, cuda, nccl, driver, gpus, engine, commit; what is empty is left out.
    """
    rows = list(rows)
    gpus = ", ".join(f"{count} x {name}" for name, count in Counter(machine.get("gpus") or []).items())
    parts = [f"GPUs: {gpus or 'none'}"]
    names = ("driver", "torch", "cuda", "nccl", "engine", "commit")
    parts += [f"{name} {machine[name]}" for name in names if machine.get(name)]
    tally = Counter(row.outcome for row in rows)
    counts = ", ".join(f"{tally[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped") if tally[outcome])
    lines = [
        f"### {date}",
        "",
        f"{'; '.join(parts)}. `{command}`: {counts}.",
        "",
        "| test | outcome | seconds | found |",
        "|---|---|---|---|",
    ]
    for row in rows:
        found = [f"{name}: {value}" for name, value in row.found.items()]
        cells = (row.name, row.outcome, f"{row.seconds:.0f}", "; ".join([*found, *([row.why] if row.why else [])]))
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
