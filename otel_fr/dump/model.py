"""A flight-recorder file, read: the same plain data whoever wrote it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from otel_fr.dump.columns import Entries

Source = Literal["otel-fr", "pytorch", "torchcomms"]


@dataclass(slots=True)
class GroupInfo:
    """A process group as one file tells of it.

    Attributes:
        key: names it within the file.
        id: `identity.group_id`, if the file has it; else "".
        ranks: global, in the order of the ranks within the group; empty: the file does not say.
        enqueued, completed: last collective sequence id issued / completed; None: the file does not say.
        first_recorded: the oldest collective in the file, if older ones are not in it any more; else None.
    """

    key: str
    id: str
    name: str
    description: str
    ranks: tuple[int, ...]
    enqueued: int | None = None
    completed: int | None = None
    first_recorded: int | None = None


@dataclass(slots=True)
class Dump:
    """One rank's file.

    Attributes:
        entries: a sequence of `Entry`, oldest first. Roots and peers of ours are global ranks, others' peers are ranks
            within the group.
        partial: the file holds not every call: older ones were overwritten, or completed ones left out.
        gapless: of what came after its first call none is left out.
        has_completions: the recorder tells when calls end.
        facts: what otel-fr adds (the file's ``otel_fr`` key, checked); empty in files of others.
        notes: what was found odd in it, as sentences.
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
    has_completions: bool = True
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    modified_ns: int = 0

    def text(self, key: str) -> str:
        """A fact that is text; "" if it is missing or something else."""
        value = self.facts.get(key)
        return value if isinstance(value, str) else ""

    def integer(self, key: str) -> int | None:
        """A fact that is an integer of 64 bits; None if it is missing or something else."""
        value = self.facts.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else None


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that could not be used, or only in part: which, what is wrong, what to do."""

    path: str
    text: str
