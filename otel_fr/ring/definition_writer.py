"""Methods of the writer that write definitions: groups, signatures, call sites, threads.

Definitions are written to one half of the definition area. When this half is full, a new generation starts in the other
half.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Hashable
from pathlib import Path
from typing import Final

from otel_fr.ring.definitions import MAX_GROUP_PAYLOAD, GroupDef, SignatureDef, SiteDef, fitting, thread_bytes
from otel_fr.ring.layout import (
    DEFINITION,
    DEFINITION_PREFIX,
    HALF_START,
    PROGRESS_ROWS,
    ROW_ENQUEUED,
    ROW_GROUP,
    ROW_SIZE,
    WORD_GENERATION,
    WORD_TAIL,
    WORD_UNTRACKED,
    WORD_USED,
    DefinitionKind,
    Layout,
)
from otel_fr.ring.status import StatusWriter

MAX_INTERNED: Final = 65_536
"""Most entries of one cache of references. A half of a large ring holds millions of definitions, and each would be a
Python key in the rank's memory."""


class WrittenGroup:
    """A live group.

    Attributes:
        payload: payload of the group's definition.
        short: a shortened payload, for a half with little room.
        ref: the group's reference in this generation; 0: none yet.
        row: first word of the group's progress row; 0: none.
    """

    def __init__(self, definition: GroupDef) -> None:
        self.short = definition.shortened().to_bytes()
        payload = definition.to_bytes()
        self.payload = payload if len(payload) <= MAX_GROUP_PAYLOAD else self.short
        self.ref = 0
        self.row = 0


class DefinitionWriter(StatusWriter):
    """The part of `otel_fr.ring.RingWriter` that writes definitions and the groups of progress rows.

    Attributes:
        path: path of the file.
        generation: generation of the definitions. References of earlier generations are stale.
        signatures, sites, threads: caches: key -> reference in this generation. They are emptied in place.
    """

    __slots__ = (
        "_generation_first",
        "_groups",
        "_half",
        "_head",
        "_layout",
        "_next_group",
        "_rows",
        "_used",
        "generation",
        "signatures",
        "sites",
        "threads",
    )

    def __init__(self, path: Path, mapping: mmap.mmap, layout: Layout) -> None:
        super().__init__(path, mapping, layout)
        self.signatures: dict[Hashable, int] = {}
        self.sites: dict[Hashable, int] = {}
        self.threads: dict[int, int] = {}
        self._layout = layout
        self._head = 0
        self._used = 0
        self._generation_first = 1
        self._groups: dict[int, WrittenGroup] = {}
        self._next_group = 0
        self._rows = [layout.progress // 8 + row * (ROW_SIZE // 8) for row in reversed(range(PROGRESS_ROWS))]
        self._words[WORD_TAIL] = 1
        self._start_generation(1)

    # ---- groups

    def add_group(self, definition: GroupDef) -> int:
        """Add a live group. Return its index, which is never reused, so that a late `complete` affects no other group.

        If 256 live groups have a progress row, further groups get none, but are recorded and counted.

        Raises:
            DefinitionError: ``local_id`` is negative, or a number does not fit 64 bits. Nothing has changed then.
        """
        group = WrittenGroup(definition)
        if group.payload is group.short:
            self.count("truncated_definitions")
        index = self._next_group
        self._next_group += 1
        self._groups[index] = group
        if self._rows:
            row = group.row = self._rows.pop()
            # The row's group is written last, so that a reader never sees it with the numbers of the earlier group.
            for word in range(row + ROW_ENQUEUED, row + ROW_SIZE // 8):
                self._words[word] = 0
        else:
            self._words[WORD_UNTRACKED] += 1
        self._define_group(group)
        return index

    def remove_group(self, index: int) -> None:
        """Remove a group. Its records stay readable. Unknown indexes are ignored."""
        group = self._groups.pop(index, None)
        if group is None:
            return
        if group.row:
            self._words[group.row + ROW_GROUP] = 0
            self._rows.append(group.row)
        else:
            self._words[WORD_UNTRACKED] -= 1

    def _define_group(self, group: WrittenGroup) -> None:
        """Give a group a reference if it has none in this generation. May start a new generation."""
        if not self._fits(group.payload):
            self._flip()
        # A new generation defines every group that has a row, including this one.
        if not group.ref:
            self._write_group(group, group.payload)

    def _write_group(self, group: WrittenGroup, payload: bytes) -> None:
        group.ref = self._write(DefinitionKind.GROUP, payload)
        if group.row:
            self._words[group.row + ROW_GROUP] = self.generation << 32 | group.ref

    # ---- definitions

    def define_signature(self, key: Hashable, definition: SignatureDef) -> int:
        """Write a signature and remember its reference under ``key``. May start a new generation.

        Raises:
            DefinitionError: a number in it is negative or does not fit 64 bits. Nothing has changed then.
        """
        return self._define(DefinitionKind.SIGNATURE, self.signatures, key, definition)

    def define_site(self, key: Hashable, definition: SiteDef) -> int:
        """Like `define_signature`, for a call site."""
        return self._define(DefinitionKind.SITE, self.sites, key, definition)

    def define_thread(self, ident: int, name: str) -> int:
        """Write a thread's name and remember its reference under ``ident``. May start a new generation."""
        payload = thread_bytes(ident, name)
        if not self._fits(payload):
            self._flip()
        if len(self.threads) >= MAX_INTERNED:
            self.threads.clear()
        ref = self.threads[ident] = self._write(DefinitionKind.THREAD, payload)
        return ref

    def _define(
        self, kind: DefinitionKind, cache: dict[Hashable, int], key: Hashable, definition: SignatureDef | SiteDef
    ) -> int:
        payload, truncated = fitting(definition)
        if truncated:
            self.count("truncated_definitions")
        if not self._fits(payload):
            self._flip()
        if len(cache) >= MAX_INTERNED:
            cache.clear()
        ref = cache[key] = self._write(kind, payload)
        return ref

    def _fits(self, payload: bytes) -> bool:
        return self._used + DEFINITION.size + len(payload) <= self._layout.half_size

    def _write(self, kind: DefinitionKind, payload: bytes) -> int:
        """Append a definition that fits. Return its reference: the offset in the half, in units of 8 bytes."""
        prefix = DEFINITION_PREFIX.pack(len(payload), self.generation, kind)
        crc = zlib.crc32(payload, zlib.crc32(prefix))
        data = prefix + struct.pack("<I", crc) + payload
        offset = self._used
        start = self._half + offset
        self._map[start : start + len(data)] = data
        # The size of a half is a multiple of 8, so if a definition fits, its padding also fits.
        self._used = offset + (len(data) + 7 & ~7)
        self._words[WORD_USED] = self._used
        return offset // 8

    def _flip(self) -> None:
        """Start a new generation in the other half. First give up the records that need the old definitions there."""
        self._words[WORD_TAIL] = self._generation_first
        self._generation_first = self._head + 1
        self.signatures.clear()
        self.sites.clear()
        self.threads.clear()
        for group in self._groups.values():
            group.ref = 0
        self._start_generation(self.generation + 1)
        # Groups with a row are written now, so that their rows have valid references. Other groups are written when
        # they are used. Past an eighth of the half, groups are written in short form: then all 256 groups leave room
        # for the largest signature, site, group and thread.
        room = self._layout.half_size // 8
        for group in self._groups.values():
            if group.row:
                full = self._used + len(group.payload) <= room
                if not full:
                    self.count("truncated_definitions")
                self._write_group(group, group.payload if full else group.short)
        self.count("flips")

    def _start_generation(self, generation: int) -> None:
        self.generation = generation
        self._half = self._layout.half(generation)
        self._used = HALF_START
        words = self._words
        words[self._half // 8] = generation
        words[WORD_USED] = HALF_START
        words[WORD_GENERATION] = generation
