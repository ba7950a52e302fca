"""Answers of NCCL's RAS about a run, as sentences that are shown beside an incident. No verdict rests on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from otel_fr import ras_text
from otel_fr.match import Group
from otel_fr.presentation import count_text, summary_text
from otel_fr.rank_report.ras import ReportedRas

MAX_LINES: Final = 16
"""Sentences of an answer."""
MAX_LINE: Final = 400
"""Characters of a sentence."""


class RasAnswer(NamedTuple):
    """One answer.

    Attributes:
        asked: Unix time, by the collector's clock. version: NCCL's.
        lines: sentences about what is odd, or the sentence that nothing is.
    """

    asked: float
    version: str
    lines: tuple[str, ...]


def read_ras(given: ReportedRas, groups: Iterable[Group], pid_of: Mapping[int, int | None], wall: float) -> RasAnswer:
    """Convert an answer to sentences, which name process groups and ranks as their run does.

    Args:
        groups: of the run. pid_of: rank -> process id; None: not known.
        wall: Unix time at which the answer was sent.
    """
    found = [summary_text(line) for line in _lines(given, list(groups), pid_of)]
    shown = [line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 3]}..." for line in found[:MAX_LINES]]
    if len(found) > MAX_LINES:
        shown[-1] = f"and {len(found) - MAX_LINES + 1} more"
    return RasAnswer(wall - (given.age_s or 0.0), given.version, tuple(shown))


def _lines(given: ReportedRas, groups: list[Group], pid_of: Mapping[int, int | None]) -> Iterator[str]:
    for one in given.odd:
        yield from ras_text.sentences(one, ras_text.group_of(one, groups, pid_of))
    if given.odd_more:
        yield f"something is odd in {count_text(given.odd_more, 'more communicator')}"
    if not given.odd:
        yield ras_text.all_well(given.communicators)
    for line in given.diagnostics.splitlines():
        yield f"NCCL's diagnostics: {line}"
    if given.timeouts:
        yield ras_text.timeouts_text(given.timeouts)
