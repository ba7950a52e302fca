"""A flight-recorder file, read: the same plain data whoever wrote it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from otel_fr.match.model import CallState, Signature, Stream

if TYPE_CHECKING:
    from otel_fr.dump.columns import Entries

Source = Literal["otel-fr", "pytorch", "torchcomms"]


class Entry(NamedTuple):
    """One recorded call.

    Attributes:
        group: `GroupInfo.key`.
        signature: as the file has it; for a send or receive ``peer`` is a rank within the group unless ``exact``.
        pair_index: p2p: its number among those with this peer, direction and tag; None: not recorded.
        age, duration: seconds; None: not recorded.
        site: ``"file:line function"`` of the user's code; empty: unknown. frames: the whole recorded traceback, each
            frame in that form, innermost first.
        batch: record id of the entry that ends its batch; None: stands alone.
        created_ns, started_ns, ended_ns: the rank's wall clock, to show a time line; never to be compared with
            another rank's. None: not recorded.
        backend: ``"nccl"``, ``"gloo"``, ...; empty: not recorded. thread: name of the thread that issued it.
    """

    group: str
    stream: Stream
    sequence_id: int
    record: int
    signature: Signature
    state: CallState
    pair_index: int | None = None
    age: float | None = None
    duration: float | None = None
    gap: float | None = None
    timeout: float | None = None
    error: str | None = None
    site: str = ""
    batch: int | None = None
    frames: tuple[str, ...] = ()
    created_ns: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    backend: str = ""
    thread: str = ""


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
