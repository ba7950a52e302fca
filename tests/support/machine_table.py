"""The table "several machines" (benchmarks/RESULTS.md), which `make machines` prints: a row for each case."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_fr.incident import unix

COLUMNS = ("case", "truth", "verdict", "seconds to it", "host named", "last line of otel-fr in each host's log")
MAX_LINE = 110
"""Most characters of a log's line in the table."""
_SAID = re.compile(r"otel-fr(?:\[rank \d+\])?: (?!files of )(.+)")
"""A line about the job, except lines about files."""


class Table:
    """A pytest plugin that prints the table."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, ...]] = []

    def add(
        self, case: str, truth: str, since: float, causes: Sequence[Mapping[str, Any]], logs: Mapping[str, Path]
    ) -> None:
        """Add a case.

        Args:
            since: Unix time at which the fault began, in seconds.
            causes: incidents that are causes.
            logs: host -> its log.
        """
        seconds = [f"{(unix(one['detected_at']) or 0.0) - since:.1f}" for one in causes if "detected_at" in one]
        hosts = {host for one in causes for host in named(one) or _told(one, logs)}
        said = map(_verdict, causes)
        parts = "; ".join(said) or "nothing", "; ".join(seconds), ", ".join(sorted(hosts))
        self._rows.append((case, truth, *parts, "; ".join(_last_lines(logs))))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("several machines")
        for row in (COLUMNS, ("---",) * len(COLUMNS), *self._rows):
            terminalreporter.write_line(f"| {' | '.join(row)} |")


def named(cause: Mapping[str, Any]) -> set[str]:
    """Return the hosts of an incident's culprits."""
    found = (cause["places"].get(str(rank)) for rank in cause["culprit_ranks"])
    return {place["host"] for place in found if place is not None}


def _told(cause: Mapping[str, Any], hosts: Iterable[str]) -> set[str]:
    """Return the hosts that the incident's summary names."""
    return {host for host in hosts if re.search(rf"\b{host}\b", cause["summary"])}


def _verdict(cause: Mapping[str, Any]) -> str:
    """Return category, culprits, rule, and the reason of resolution."""
    ranks = ", ".join(map(str, cause["culprit_ranks"])) or "nobody"
    return f"`{cause['category']}` {ranks} ({cause['rule']}); {cause.get('resolution') or 'open'}"


def _last_lines(logs: Mapping[str, Path]) -> Iterator[str]:
    """Yield the last line of each host's log about the job, once for all hosts with the same line."""
    hosts: dict[str, list[str]] = {}
    for host, log in logs.items():
        found = _SAID.findall(log.read_text(errors="replace")) or ["-"]
        hosts.setdefault(textwrap.shorten(found[-1], MAX_LINE, placeholder="..."), []).append(host)
    for line, own in hosts.items():
        yield f"{', '.join(own)}: {line}"
