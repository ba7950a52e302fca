"""The results of a run of the benchmark. They are written after each job, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.localisation import why
from benchmarks.localisation.catalogue import Program
from benchmarks.localisation.field import Row
from benchmarks.localisation.held_out import MADE_UP
from benchmarks.localisation.running import Setting
from benchmarks.localisation.tables import LEGEND, programs, summary
from benchmarks.localisation.tools.tool import Tool


@dataclass
class Results:
    """Attributes:
    parts: facts about the run, and its time; several if it was resumed. not_started: jobs that did not begin.
    """

    parts: list[dict[str, Any]] = field(default_factory=list)
    not_started: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Results:
        return cls(**json.loads(path.read_text()))

    @classmethod
    def joined(cls, several: Iterable[Results]) -> Results:
        """Join results. If a tool has two answers about a job, the last one counts."""
        every = list(several)
        latest = {_answer(row): row for one in every for row in one.rows}
        return cls(
            [part for one in every for part in one.parts],
            [text for one in every for text in one.not_started],
            [*latest.values()],
        )

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=1))
        part.rename(path)

    def begin(self, about: Mapping[str, object]) -> None:
        """Note that a run begins, or is resumed."""
        self.not_started.clear()
        now = time.strftime("%Y-%m-%d %H:%M")
        self.parts.append({"begun": now, **about, "answers": 0})

    def add(self, found: Sequence[Row] | str) -> None:
        """Add the answers about one job, or the reason why it did not begin."""
        if isinstance(found, str):
            self.not_started.append(found)
        else:
            self.rows += found
            self.parts[-1]["answers"] += len(found)

    def have(self, program: Program, setting: Setting, tools: Sequence[Tool]) -> bool:
        """Return True if all these tools have answers about the job."""
        known = {_answer(row) for row in self.rows}
        return all((setting.name, program.name, tool.name) in known for tool in tools)

    def report(self) -> str:
        """Return all tables, and the facts about the run."""
        listed = [row for row in self.rows if not row["program"].startswith(MADE_UP)]
        made_up = [row for row in self.rows if row["program"].startswith(MADE_UP)]
        texts = [f"## The programs\n\n{summary(listed)}"] if listed else []
        texts += [f"## Made up by the seed\n\n{summary(made_up)}"] if made_up else []
        for setting in dict.fromkeys(row["backend"] for row in self.rows):
            texts.append(f"## {setting}\n\n{LEGEND}\n\n{programs(self.rows, setting)}")
        if reasons := why.table(self.rows):
            texts.append(f"## Where otel-fr is not best\n\n{reasons}")
        if self.not_started:
            texts.append("## Did not begin\n\n" + "\n".join(self.not_started))
        resumed = f", resumed {len(self.parts) - 1} times" if len(self.parts) > 1 else ""
        texts.append(f"## Run{resumed}\n\n" + "\n".join(f"* {_part_text(part)}" for part in self.parts))
        return "\n" + "\n\n".join(texts)


def _answer(row: Row) -> tuple[str, str, str]:
    return row["backend"], row["program"], row["tool"]


def _part_text(part: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in part.items())
