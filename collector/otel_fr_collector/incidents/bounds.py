"""Limits the text of an incident, because it is written as JSON to every outlet at each change.

A report bounds the texts of one rank, but an incident has the texts of all its ranks. For 16,384 ranks, the longest
texts would take 2 GB. The limits leave room for ordinary texts of 16,384 ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from otel_fr.incident import CulpritData
from otel_fr.match import Ending, Finding
from otel_fr_collector.jobs.ranks import RankState

MAX_SUMMARY = 8_192
MAX_DETAILS = 32 * 1024
"""Characters of all further sentences together."""
MAX_STACKS = 512 * 1024
"""Characters of all stacks together; the stacks of the lowest ranks come first."""
MAX_SITES = 2 * 1024 * 1024
MAX_VALUES = 1024 * 1024
MAX_FILES = 2 * 1024 * 1024
SCARCE = 256
"""All limits but the first are divided by this if the incidents of all runs together take too much."""
MAX_CULPRITS = 16
"""Culprits whose host and error are kept."""
MAX_ERROR = 1_000
"""Characters of an error."""
EXITING = "exiting"
"""The ending of a culprit whose interpreter is exiting: how it ends is not known yet."""
_CUT = " ..."


def bounded(finding: Finding, *, scarce: bool = False) -> Finding:
    """The finding with its texts cut to the limits; ``scarce``: there is hardly room for texts."""
    share = SCARCE if scarce else 1
    return dataclasses.replace(
        finding,
        summary=_cut(finding.summary, MAX_SUMMARY),
        details=tuple(first_texts(dict(enumerate(finding.details)), MAX_DETAILS // share).values()),
        places={} if scarce else finding.places,
        stacks=first_texts(finding.stacks, MAX_STACKS // share),
        stack_groups=() if scarce else finding.stack_groups,
        call_sites=_shortened(finding.call_sites, MAX_SITES // share),
        values=_shortened(finding.values, MAX_VALUES // share),
    )


def culprits_of(finding: Finding, ranks: Mapping[int, RankState]) -> list[CulpritData]:
    """The state of the first `MAX_CULPRITS` culprits of a finding."""
    found: list[CulpritData] = []
    for rank in sorted(finding.culprit_ranks)[:MAX_CULPRITS]:
        state = ranks.get(rank)
        host, error = ("", "") if state is None else (state.host, _cut(_error(state), MAX_ERROR))
        replica = state.replica if state is not None and state.replica else None
        ending, signal = (None, None) if state is None else (_ending(state), state.signal or None)
        found.append(
            {"rank": rank, "host": host, "error": error, "replica": replica, "ending": ending, "signal": signal}
        )
    return found


def _error(state: RankState) -> str:
    """The exception that ended the rank, including `sys.exit` with a text."""
    is_told = state.ending is Ending.RAISED and state.exit_message and not state.exception
    return f"SystemExit: {state.exit_message}" if is_told else state.exception


def _ending(state: RankState) -> str | None:
    if state.ending in (Ending.RUNNING, Ending.UNKNOWN):
        return EXITING if state.is_exiting else None
    return str(state.ending.value)


def size_of(finding: Finding, files: Mapping[int, str], culprits: Iterable[CulpritData] = ()) -> int:
    """Approximate bytes of an incident: its texts, and its ranks in each form that it holds."""
    texts = (finding.stacks, finding.call_sites, finding.values, files)
    ranks = len(finding.culprit_ranks) + len(finding.waiting_ranks)
    size = 4_000 + len(finding.summary) + 24 * ranks
    size += sum(sum(map(len, one.values())) + 150 * len(one) for one in texts)
    size += sum(8 * len(group.ranks) + sum(map(len, group.frames)) for group in finding.stack_groups)
    size += 150 * len(finding.places) + sum(map(len, finding.details))
    return size + sum(300 + len(one["host"]) + len(one["error"]) for one in culprits)


def first_texts(texts: Mapping[int, str], limit: int) -> dict[int, str]:
    """The texts of the lowest ranks, at most ``limit`` characters together."""
    if sum(map(len, texts.values())) <= limit:
        return dict(texts)
    kept: dict[int, str] = {}
    for rank in sorted(texts):
        limit -= len(texts[rank])
        if limit < 0:
            break
        kept[rank] = texts[rank]
    return kept


def _shortened(texts: Mapping[int, str], limit: int) -> dict[int, str]:
    """All texts; if they have more than ``limit`` characters together, each is cut to its share."""
    if sum(map(len, texts.values())) <= limit:
        return dict(texts)
    return {rank: _cut(text, limit // len(texts)) for rank, text in texts.items()}


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(0, limit - len(_CUT))] + _CUT
