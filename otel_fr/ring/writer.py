"""The writer of a ring file: the rank.

Nothing here locks, waits, or calls the operating system once the file is created.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import zlib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Final

from otel_fr.ring.definitions import MAX_GROUP_PAYLOAD, GroupDef, SignatureDef, SiteDef, fitting, thread_bytes
from otel_fr.ring.files import create_file, private_folder
from otel_fr.ring.layout import (
    DEFINITION,
    DEFINITION_PREFIX,
    HALF_START,
    HEADER_COMPLETE,
    KIND_COLLECTIVE,
    KIND_P2P,
    PROGRESS_ROWS,
    ROW_COMPLETED,
    ROW_ENDED,
    ROW_ENQUEUED,
    ROW_GROUP,
    ROW_ISSUED,
    ROW_LAST_END,
    ROW_LAST_ISSUE,
    ROW_P2P,
    ROW_SIZE,
    SLOT_BODY,
    SLOT_ENDED_WORD,
    SLOT_SIZE,
    SLOT_TAIL,
    SLOT_WAITED_WORD,
    U32,
    WORD_GENERATION,
    WORD_HEAD,
    WORD_TAIL,
    WORD_UNTRACKED,
    WORD_USED,
    DefinitionKind,
    Layout,
    RecordState,
    StaleGeneration,
    pack_header,
    process_start_ns,
    wall_offset_ns,
)
from otel_fr.ring.status import StatusWriter

MAX_INTERNED: Final = 65_536
"""Entries of one intern cache: the halves of a large ring hold millions, each a Python key in the rank's memory."""

_SLOT_WORDS: Final = SLOT_SIZE // 8
_COMPLETED: Final = int(RecordState.COMPLETED)
_pack_body = SLOT_BODY.pack
_pack_tail = SLOT_TAIL.pack
_crc32 = zlib.crc32


class _Group:
    """A live group.

    Attributes:
        payload: of its definition. short: a shortened one, for a half with little room.
        ref: its reference in this generation; 0: none yet. row: first word of its progress row; 0: none.
    """

    __slots__ = ("payload", "ref", "row", "short")

    def __init__(self, definition: GroupDef) -> None:
        self.short = definition.shortened().to_bytes()
        payload = definition.to_bytes()
        self.payload = payload if len(payload) <= MAX_GROUP_PAYLOAD else self.short
        self.ref = 0
        self.row = 0


class RingWriter(StatusWriter):
    """Writes one ring file. Not thread safe: the caller holds a lock. Not for use after a fork.

    Attributes:
        path: the file.
        generation: of the definitions; references of an earlier one are stale.
        signatures, sites, threads: intern caches, key to reference of this generation. Emptied in place.
    """

    __slots__ = (
        "_capacity",
        "_generation_first",
        "_groups",
        "_half",
        "_head",
        "_layout",
        "_next_group",
        "_rows",
        "_slot_offset",
        "_slot_words",
        "_slots",
        "_used",
        "generation",
        "signatures",
        "sites",
        "threads",
    )

    def __init__(self, path: Path, mapping: mmap.mmap, layout: Layout, meta: Mapping[str, object]) -> None:
        """Use `create`. Writes the header into ``mapping``, which is all zeros."""
        super().__init__(path, mapping, layout)
        self.signatures: dict[Hashable, int] = {}
        self.sites: dict[Hashable, int] = {}
        self.threads: dict[int, int] = {}
        self.generation = 1
        self._layout = layout
        self._capacity = layout.capacity
        self._slots = layout.slots
        self._slot_offset = layout.slots_start
        self._slot_words = layout.slots_start // 8 + SLOT_ENDED_WORD
        self._head = 0
        self._half = 0
        self._used = 0
        self._generation_first = 1
        self._groups: dict[int, _Group] = {}
        self._next_group = 0
        self._rows = [layout.progress // 8 + row * (ROW_SIZE // 8) for row in reversed(range(PROGRESS_ROWS))]
        pid = os.getpid()
        header = pack_header(layout, wall_offset_ns(), pid, process_start_ns(pid) or 0)
        mapping[: len(header)] = header
        self._words[WORD_TAIL] = 1
        self._start_generation(1)
        self.set_meta(meta)
        self._words[HEADER_COMPLETE // 8] = 1

    @classmethod
    def create(cls, folders: Sequence[Path], name: str, capacity: int, meta: Mapping[str, object]) -> RingWriter:
        """Create a ring file in the first of ``folders`` that can hold it.

        The file is ``FOLDER/otel-fr-UID/NAME`` (``NAME.1`` ... if that name is taken: files of other processes are
        kept), of mode 0600 in a folder of mode 0700, with all its space reserved.

        Args:
            capacity: records kept. The file takes 96 bytes for each, and 128 more for definitions (at least 512 KiB).
            meta: what describes the rank; see `set_meta`.

        Raises:
            OSError: no folder can hold the file; each is named with its reason.
            ValueError: capacity or name is out of range.
        """
        layout = Layout.of(capacity)
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} is not a file name")
        failures: list[str] = []
        number = errno.ENOENT
        for base in folders:
            try:
                path, mapping = create_file(private_folder(base), name, layout.file_size)
            except OSError as error:
                failures.append(f"{base}: {error.strerror or error}")
                number = error.errno or number
                continue
            try:
                return cls(path, mapping, layout, meta)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        reasons = "; ".join(failures) or "none given"
        raise OSError(number, f"no folder can hold a ring of {layout.file_size} bytes ({reasons})")

    # ---- the hot path

    def append(
        self,
        group_index: int,
        sig_ref: int,
        site_ref: int,
        thread_ref: int,
        generation: int,
        kind: int,
        flags: int,
        coll_seq: int,
        p2p_seq: int,
        op_id: int,
        pair_index: int,
        timeout_ms: int,
        issued_ns: int,
    ) -> int:
        """Record a call; it is in the file when this returns.

        Called by the training thread for every call, so the arguments are positional: by keyword they take
        0.06 us more (CPython 3.11).

        Args:
            group_index: from `add_group`.
            sig_ref, site_ref, thread_ref: from the ``define_`` methods (site, thread: 0 for none), of ``generation``.
            pair_index: kept modulo 2**32. timeout_ms: kept up to 2**32 - 1.
            issued_ns: monotonic ns.

        Returns:
            The ticket that `complete` takes: the record's id + 1.

        Raises:
            StaleGeneration: ``generation`` is not `generation`: look the references up again and retry.
            KeyError: the group was removed.
            struct.error: a number does not fit its field. Nothing is recorded then.
        """
        if generation != self.generation:
            raise StaleGeneration
        group = self._groups[group_index]
        group_ref = group.ref
        if not group_ref:
            group_ref = self._define_group(group)
            if generation != self.generation:
                raise StaleGeneration
        ticket = self._head + 1
        if timeout_ms > U32:
            timeout_ms = U32
        body = _pack_body(
            ticket,
            issued_ns,
            coll_seq,
            p2p_seq,
            op_id,
            group_ref,
            sig_ref,
            site_ref,
            generation,
            pair_index & U32,
            kind,
            flags,
            0,
            timeout_ms,
            thread_ref,
        )
        start = self._slot_offset + ticket % self._slots * SLOT_SIZE
        self._map[start : start + SLOT_SIZE] = body + _pack_tail(_crc32(body), 0, 0, 0)
        words = self._words
        words[WORD_HEAD] = self._head = ticket
        row = group.row
        if row:
            if kind == KIND_COLLECTIVE:
                words[row + ROW_ENQUEUED] = coll_seq
            elif kind == KIND_P2P:
                words[row + ROW_P2P] = p2p_seq
            words[row + ROW_ISSUED] += 1
            words[row + ROW_LAST_ISSUE] = issued_ns
        return ticket

    def complete(self, ticket: int, group_index: int, coll_seq: int, state: int, ended_ns: int) -> None:
        """Record that a call ended. If its record was overwritten meanwhile, only the group's counts change.

        Args:
            ticket: from `append`.
            coll_seq: the call's collective sequence id; 0 for one that has none of its own (p2p, monitored).
            state: `RecordState`; only COMPLETED moves the group's highest completed sequence id.
            ended_ns: monotonic ns; 0: unknown.
        """
        words = self._words
        if self._head - ticket < self._capacity:
            words[self._slot_words + ticket % self._slots * _SLOT_WORDS] = ended_ns << 2 | state
        group = self._groups.get(group_index)
        if group is None:
            return
        row = group.row
        if row:
            words[row + ROW_ENDED] += 1
            words[row + ROW_LAST_END] = ended_ns
            if state == _COMPLETED and coll_seq > words[row + ROW_COMPLETED]:
                words[row + ROW_COMPLETED] = coll_seq

    def wait(self, ticket: int, waited_ns: int) -> None:
        """Record since when a thread waits for a call whose end the backend shows to a waiting thread only.

        Args:
            ticket: from `append`.
            waited_ns: monotonic ns; `POSTED`: no thread waits for it yet.
        """
        if self._head - ticket < self._capacity:
            word = self._slot_words + ticket % self._slots * _SLOT_WORDS
            self._words[word - SLOT_ENDED_WORD + SLOT_WAITED_WORD] = waited_ns

    # ---- groups

    def add_group(self, definition: GroupDef) -> int:
        """Add a live group; returns its index, which is never used again, so a late `complete` affects no other group.

        256 live groups have a progress row; calls of further groups are recorded, too, and the groups counted.

        Raises:
            DefinitionError: ``local_id`` is negative, or a number does not fit 64 bits. Nothing has changed then.
        """
        group = _Group(definition)
        if group.payload is group.short:
            self.count("truncated_definitions")
        index = self._next_group
        self._next_group += 1
        self._groups[index] = group
        if self._rows:
            row = group.row = self._rows.pop()
            # The row's group is written last: a reader never sees a group with the numbers of the one before it.
            for word in range(row + ROW_ENQUEUED, row + ROW_SIZE // 8):
                self._words[word] = 0
        else:
            self._words[WORD_UNTRACKED] += 1
        self._define_group(group)
        return index

    def remove_group(self, index: int) -> None:
        """Remove a group; its records stay readable. Unknown indexes are ignored."""
        group = self._groups.pop(index, None)
        if group is None:
            return
        if group.row:
            self._words[group.row + ROW_GROUP] = 0
            self._rows.append(group.row)
        else:
            self._words[WORD_UNTRACKED] -= 1

    def _define_group(self, group: _Group) -> int:
        """The reference of a group that has none in this generation. May start a generation."""
        if not self._fits(group.payload):
            self._flip()
        # A new generation defines every group that has a row, this one too.
        if not group.ref:
            self._write_group(group, group.payload)
        return group.ref

    def _write_group(self, group: _Group, payload: bytes) -> None:
        group.ref = self._write(DefinitionKind.GROUP, payload)
        if group.row:
            self._words[group.row + ROW_GROUP] = self.generation << 32 | group.ref

    # ---- definitions

    def define_signature(self, key: Hashable, definition: SignatureDef) -> int:
        """Write a signature and remember its reference under ``key``. May flip (see `generation`).

        Raises:
            DefinitionError: a number in it is negative or does not fit 64 bits. Nothing has changed then.
        """
        return self._define(DefinitionKind.SIGNATURE, self.signatures, key, definition)

    def define_site(self, key: Hashable, definition: SiteDef) -> int:
        """Write a call site and remember its reference under ``key``. May flip. Raises as `define_signature`."""
        return self._define(DefinitionKind.SITE, self.sites, key, definition)

    def define_thread(self, ident: int, name: str) -> int:
        """Write a thread's name and remember its reference under ``ident``. May flip."""
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
        """Append a definition that fits; its reference is its offset in the half, in units of 8 bytes."""
        prefix = DEFINITION_PREFIX.pack(len(payload), self.generation, kind)
        crc = _crc32(payload, _crc32(prefix))
        data = prefix + struct.pack("<I", crc) + payload
        offset = self._used
        start = self._half + offset
        self._map[start : start + len(data)] = data
        # Sizes are whole units: a half is a multiple of 8, so the padding of what fits fits too.
        self._used = offset + (len(data) + 7 & ~7)
        self._words[WORD_USED] = self._used
        return offset // 8

    def _flip(self) -> None:
        """Start a generation in the other half; first the records that need that half's definitions are given up."""
        self._words[WORD_TAIL] = self._generation_first
        self._generation_first = self._head + 1
        self.signatures.clear()
        self.sites.clear()
        self.threads.clear()
        for group in self._groups.values():
            group.ref = 0
        self._start_generation(self.generation + 1)
        # Groups with a row are written now, so that their rows resolve; the others when they are used. In short form
        # past an eighth of the half: all 256 then leave room for the largest signature, site, group and thread.
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
