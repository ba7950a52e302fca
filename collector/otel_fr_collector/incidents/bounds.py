"""How much text one incident holds: it is written, as JSON, to every outlet at each change.

A report bounds the texts of one rank, but an incident has those of all its ranks: with the longest of 16,384 ranks it
would be 2 GB. The limits leave room for ordinary texts of so many ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from otel_fr.match import Finding

MAX_SUMMARY = 8_192
MAX_STACKS = 512 * 1024
"""Characters of all stacks together; those of the lowest ranks come first."""
MAX_SITES = 2 * 1024 * 1024
MAX_VALUES = 1024 * 1024
MAX_FILES = 2 * 1024 * 1024
_CUT = " ..."


def bounded(finding: Finding) -> Finding:
    """The finding with its texts cut to the limits."""
    return dataclasses.replace(
        finding,
        summary=_cut(finding.summary, MAX_SUMMARY),
        stacks=first_texts(finding.stacks, MAX_STACKS),
        call_sites=_shortened(finding.call_sites, MAX_SITES),
        values=_shortened(finding.values, MAX_VALUES),
    )


def first_texts(texts: Mapping[int, str], limit: int) -> dict[int, str]:
    """The texts of the lowest ranks, as many as have ``limit`` characters together."""
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
