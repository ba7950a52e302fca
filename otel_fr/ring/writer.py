"""The writer of a ring file: the rank.

Nothing here locks, waits, or calls the operating system once the file is created.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from otel_fr.ring.definition_writer import DefinitionWriter, WrittenGroup
from otel_fr.ring.files import new_ring
from otel_fr.ring.layout import (
    HEADER_COMPLETE,
    KIND_COLLECTIVE,
    KIND_P2P,
    ROW_COMPLETED,
    ROW_ENDED,
    ROW_ENQUEUED,
    ROW_ISSUED,
    ROW_LAST_END,
    ROW_LAST_ISSUE,
    ROW_P2P,
    SLOT_BODY,
    SLOT_ENDED_WORD,
    SLOT_NUMBERS,
    SLOT_REST,
    SLOT_SIZE,
    SLOT_TAIL,
    SLOT_WAITED_WORD,
    SLOT_WHOLE,
    U32,
    WORD_HEAD,
    WORD_TAIL,
    Layout,
    RecordState,
    StaleGeneration,
    own_header,
)

_SLOT_WORDS: Final = SLOT_SIZE // 8
_COMPLETED: Final = int(RecordState.COMPLETED)
_pack_body = SLOT_BODY.pack
_pack_tail = SLOT_TAIL.pack
_pack_rest = SLOT_REST.pack
_pack_numbers = SLOT_NUMBERS.pack
_pack_slot = SLOT_WHOLE.pack_into
_crc32 = zlib.crc32


class Prepared:
    """What the records of equal collectives have in common, made once: see `RingWriter.prepare`.

    Attributes:
        generation: of the definitions that it refers to.
        rest: the bytes of a slot from the references to the thread.
    """

    __slots__ = ("generation", "group", "rest")

    def __init__(self, generation: int, group: WrittenGroup, rest: bytes) -> None:
        self.generation = generation
        self.group = group
        self.rest = rest


class RingWriter(DefinitionWriter):
    """Writes one ring file. Not thread safe, but for `complete`: the caller holds a lock. Not for use after a fork."""

    __slots__ = (
        "_capacity",
        "_slot_offset",
        "_slot_words",
        "_slots",
    )

    def __init__(self, path: Path, mapping: mmap.mmap, layout: Layout, meta: Mapping[str, object]) -> None:
        """Use `create`. Writes the header into ``mapping``, which is all zeros."""
        super().__init__(path, mapping, layout)
        self._capacity = layout.capacity
        self._slots = layout.slots
        self._slot_offset = layout.slots_start
        self._slot_words = layout.slots_start // 8 + SLOT_ENDED_WORD
        header = own_header(layout)
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
        with new_ring(folders, name, layout) as (path, mapping):
            return cls(path, mapping, layout, meta)

    @property
    def head(self) -> int:
        """Calls recorded so far."""
        return self._head

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
            words[row + ROW_ISSUED] = group.issued = group.issued + 1
            words[row + ROW_LAST_ISSUE] = issued_ns
        return ticket

    def prepare(self, group_index: int, sig_ref: int, site_ref: int, thread_ref: int, timeout_ms: int, /) -> Prepared:
        """What `append_prepared` takes for collectives like one that `append` has just recorded, in this generation.

        It holds until the generation changes or the group is removed.

        Raises:
            KeyError: the group was removed.
        """
        group = self._groups[group_index]
        generation = self.generation
        rest = _pack_rest(
            group.ref, sig_ref, site_ref, generation, 0, KIND_COLLECTIVE, 0, 0, min(timeout_ms, U32), thread_ref
        )
        return Prepared(generation, group, rest)

    def append_prepared(self, prepared: Prepared, coll_seq: int, p2p_seq: int, op_id: int, issued_ns: int, /) -> int:
        """As `append`, of a collective, in two thirds of the time.

        Raises:
            StaleGeneration: what is prepared is of an earlier generation.
        """
        if prepared.generation != self.generation:
            raise StaleGeneration
        ticket = self._head + 1
        body = _pack_numbers(ticket, issued_ns, coll_seq, p2p_seq, op_id, prepared.rest)
        _pack_slot(self._map, self._slot_offset + ticket % self._slots * SLOT_SIZE, body, _crc32(body))
        words = self._words
        words[WORD_HEAD] = self._head = ticket
        group = prepared.group
        row = group.row
        if row:
            words[row + ROW_ENQUEUED] = coll_seq
            words[row + ROW_ISSUED] = group.issued = group.issued + 1
            words[row + ROW_LAST_ISSUE] = issued_ns
        return ticket

    def complete(self, ticket: int, group_index: int, coll_seq: int, state: int, ended_ns: int) -> None:
        """Record the end of a call. If its record was overwritten, only the group's counts change.

        Needs no lock where there is a GIL: it calls nothing and does not loop, so CPython runs no other thread and no
        signal handler in it (they run after a call, at the begin of a function, and where a loop goes back). It stores
        no word that `append` stores, so it may run in the middle of that.

        Args:
            ticket: from `append`.
            coll_seq: the call's collective sequence id; 0 for one that has none of its own (p2p, monitored).
            state: `RecordState`; only COMPLETED moves the group's highest completed sequence id.
            ended_ns: monotonic ns; 0: unknown.
        """
        words = self._words
        if self._head - ticket < self._capacity:
            words[self._slot_words + ticket % self._slots * _SLOT_WORDS] = ended_ns << 2 | state
        try:
            group = self._groups[group_index]
        except KeyError:
            return
        row = group.row
        if row:
            words[row + ROW_ENDED] = group.ended = group.ended + 1
            words[row + ROW_LAST_END] = ended_ns
            if state == _COMPLETED and coll_seq > group.completed:
                words[row + ROW_COMPLETED] = group.completed = coll_seq

    def wait(self, ticket: int, waited_ns: int) -> None:
        """Record when a thread began to wait for a call whose end only ``wait()`` reports.

        Args:
            ticket: from `append`.
            waited_ns: monotonic ns; `POSTED`: no thread waits for it yet.
        """
        if self._head - ticket < self._capacity:
            word = self._slot_words + ticket % self._slots * _SLOT_WORDS
            self._words[word - SLOT_ENDED_WORD + SLOT_WAITED_WORD] = waited_ns
