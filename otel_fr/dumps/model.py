"""A flight-recorder file after reading: plain data, the same for every recorder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from otel_fr.dumps.columns import Entries

Source = Literal["otel-fr", "pytorch", "torchcomms"]


@dataclass(slots=True, kw_only=True)
class GroupInfo:
    """A process group as one file describes it.

    Attributes:
        key: identifies it within the file.
        id: `identity.group_id`, if the file has it; else "".
        ranks: global, in the order of the ranks within the group; empty: not recorded.
        enqueued, completed: last sequence number of a collective enqueued / completed; None: not recorded.
        first_recorded: sequence number of the oldest collective in the file if older ones were overwritten; else None.
        destroyed: the rank had destroyed it when the file was written.
        messages: sequence number of the last send or receive enqueued; 0: none; None: not recorded.
    """

    key: str
    id: str
    name: str
    description: str
    ranks: tuple[int, ...]
    enqueued: int | None = None
    completed: int | None = None
    first_recorded: int | None = None
    destroyed: bool = False
    messages: int | None = None


@dataclass(slots=True, kw_only=True)
class Dump:
    """One rank's file.

    Attributes:
        entries: a sequence of `Entry`, oldest first. In otel-fr's files roots and peers are global ranks; in files of
            other recorders peers are ranks within the group.
        partial: calls are missing: older ones were overwritten, or completed ones left out.
        gapless: no call after the first one is missing.
        recorded: number of entries in the file. all_open: none of them has completed.
        unusable: number of entries that lack required fields; they are not in `entries`.
        uncounted: keys of groups for which the file has neither calls nor the last numbers.
        has_completions: the recorder records when calls end.
        facts: the file's ``otel_fr`` key, checked; empty in files of other recorders.
        notes: irregularities found, as sentences.
        modified_ns: when the file was last written, by its file system; 0: not known.
    """

    rank: int
    source: Source
    path: str
    version: str
    groups: dict[str, GroupInfo]
    entries: Entries
    partial: bool = False
    gapless: bool = True
    recorded: int = 0
    all_open: bool = False
    unusable: int = 0
    uncounted: frozenset[str] = frozenset()
    has_completions: bool = True
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    modified_ns: int = 0

    def text(self, key: str) -> str:
        """The fact if it is text; else ""."""
        value = self.facts.get(key)
        return value if isinstance(value, str) else ""

    def integer(self, key: str) -> int | None:
        """The fact if it is an integer of 64 bits; else None."""
        value = self.facts.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else None


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that could not be used, or only partly: its path, and what is wrong and what to do."""

    path: str
    text: str
