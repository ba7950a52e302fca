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
        key: identifies the group within the file.
        id: `identity.group_id`. "" if the file does not have it.
        ranks: global ranks, in the order of the ranks within the group. Empty: not recorded.
        enqueued, completed: sequence number of the last enqueued / completed collective. None: not recorded.
        first_recorded: sequence number of the oldest collective in the file. None unless older ones were overwritten.
        destroyed: the rank had destroyed the group when the file was written.
        messages: sequence number of the last enqueued send or receive. 0: there was none. None: not recorded.
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
        entries: a sequence of `Entry`, oldest first. In otel-fr's files, roots and peers are global ranks. In files of
            other recorders, peers are ranks within the group.
        partial: calls are missing, because older ones were overwritten or completed ones left out.
        gapless: no call after the first one is missing.
        recorded: number of entries in the file.
        all_open: none of the entries has completed.
        unusable: number of entries that lack required fields. They are not in `entries`.
        uncounted: keys of groups for which the file has neither calls nor the last sequence numbers.
        has_completions: the recorder records when calls end.
        facts: the file's ``otel_fr`` key, checked. Empty in files of other recorders.
        notes: irregularities found, as sentences.
        modified_ns: when the file was last written, by its file system. 0: not known.
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
        """A fact if it is text, else ""."""
        value = self.facts.get(key)
        return value if isinstance(value, str) else ""

    def integer(self, key: str) -> int | None:
        """A fact if it is an integer of 64 bits, else None."""
        value = self.facts.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else None


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that could not be used, or only partly.

    Attributes:
        text: what is wrong and what to do.
        is_unread: what was not read may be the file of a rank without another one.
    """

    path: str
    text: str
    is_unread: bool = False
