"""Tables in Markdown: how often each tool is right, and its outcome for each program."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from benchmarks.localisation.answers import FAULTY
from benchmarks.localisation.field import TOOLS, Row

OUTCOMES = [name for name in FAULTY if name != "right"]
COST = {
    "otel-fr, live": "0.4 µs",
    "otel-fr, its files": "0.4 µs",
    "otel-fr, PyTorch's files": "1.5 µs",
    "torchfrtrace": "1.5 µs",
    "NVIDIA's analyzer": "1.5 µs",
    "torch.distributed.debug": "1.5 µs",
    "PyTorch's text": "none",
}
"""Time added to a call on the training thread, from benchmarks/RESULTS.md: for otel-fr's compiled engine, and for the
hook of PyTorch's recorder, which writes its files. ProcessGroupWrapper was not measured."""
LEGEND = "`+` right and others, `-` silent, `?` undecided, `ALARM` a rank of a healthy job is named."
_SHORT = {
    "right": "right",
    "right and others": "+",
    "wrong": "wrong",
    "silent": "-",
    "undecided": "?",
    "crash": "crash",
    "quiet": "quiet",
    "false alarm": "ALARM",
    "not run": "",
}


def summary(rows: Sequence[Row]) -> str:
    """Return a table with one line for each tool and backend."""
    head = ["backend", "tool", "right", *OUTCOMES, "seconds, median (longest)", "healthy: false alarms", "cost a call"]
    lines = []
    for backend in dict.fromkeys(row["backend"] for row in rows):
        for name in (tool.name for tool in TOOLS):
            own = [row for row in rows if (row["backend"], row["tool"]) == (backend, name)]
            if own:
                lines.append([backend, name, *_counts(own), COST.get(name, "not measured")])
    return _table(head, lines)


def _counts(rows: Sequence[Row]) -> list[str]:
    faulty = [row for row in rows if row["culprits"]]
    healthy = [row for row in rows if not row["culprits"]]
    if all(row["outcome"] == "not run" for row in rows):
        return ["not run", *[""] * (len(OUTCOMES) + 2)]
    count = Counter(row["outcome"] for row in faulty)
    seconds = sorted(row["seconds"] for row in faulty if row["outcome"] == "right" and row["seconds"] is not None)
    timed = f"{statistics.median(seconds):.1f} ({seconds[-1]:.1f})" if seconds else ""
    alarms = Counter(row["outcome"] for row in healthy)
    crashes = f", {alarms['crash']} crashes" if alarms["crash"] else ""
    found = [f"**{count['right']}** of {len(faulty)}", *(str(count[name] or "") for name in OUTCOMES)]
    return [*found, timed, f"{alarms['false alarm']} of {len(healthy)}{crashes}" if healthy else ""]


def programs(rows: Sequence[Row], backend: str) -> str:
    """Return a table with one line for each program: the outcomes of all tools."""
    own = [row for row in rows if row["backend"] == backend]
    names = [tool.name for tool in TOOLS if any(row["tool"] == tool.name for row in own)]
    lines = []
    for program in sorted({row["program"] for row in own}, key=_faults_first(own)):
        said = {row["tool"]: row for row in own if row["program"] == program}
        truth = next(iter(said.values()))
        ranks = " or ".join(_ranks(one) for one in truth["culprits"]) or "nobody"
        lines.append([f"`{program}`", ranks, *(_cell(said[name]) if name in said else "" for name in names)])
    return _table(["program", "right", *names], lines)


def _faults_first(rows: Iterable[Row]) -> Callable[[str], tuple[bool, str]]:
    return {row["program"]: (not row["culprits"], row["program"]) for row in rows}.__getitem__


def _cell(row: Row) -> str:
    shown = _SHORT[row["outcome"]]
    if row["outcome"] in ("right and others", "wrong", "false alarm"):
        shown = f"{shown} {_ranks(row['ranks'])}"
    return f"{shown} {row['seconds']:.0f} s" if row["outcome"] == "right" and row["seconds"] is not None else shown


def _ranks(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
