"""The writer of a ring file, for the rank.

Once the file is created, nothing here locks, waits, or calls the operating system.
"""

from __future__ import annotations

import zlib

from otel_fr.ring.definition_writer import DefinitionWriter
from otel_fr.ring.layout import (
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
    SLOT_SIZE,
    SLOT_TAIL,
    SLOT_WAITED_WORD,
    U32,
    WORD_HEAD,
    RecordState,
    StaleGeneration,
)


class RingWriter(DefinitionWriter):
    """Writes one ring file. Not thread safe: the caller holds a lock. Not for use after a fork."""

    __slots__ = ()

    @property
    def head(self) -> int:
        """Number of calls recorded so far."""
        return self._head

    # ---- calls

    def append(  # noqa: PLR0913
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
        """Record a call. The record is in the file when this returns.

        Args:
            group_index: from `add_group`.
            sig_ref, site_ref, thread_ref: from the ``define_`` methods, in ``generation``. Site and thread may be 0:
                unknown.
            pair_index: kept modulo 2**32.
            timeout_ms: kept up to 2**32 - 1.
            issued_ns: monotonic ns.

        Returns:
            The ticket that `complete` takes: the record's id + 1.

        Raises:
            StaleGeneration: ``generation`` is not the present one. Look the references up again and retry.
            KeyError: the group was removed.
            struct.error: a number does not fit its field. Nothing is recorded then.
        """
        if generation != self.generation:
            raise StaleGeneration
        group = self._groups[group_index]
        if not group.ref:
            self._define_group(group)
            if generation != self.generation:
                raise StaleGeneration
        ticket = self._head + 1
        body = SLOT_BODY.pack(
            ticket,
            issued_ns,
            coll_seq,
            p2p_seq,
            op_id,
            group.ref,
            sig_ref,
            site_ref,
            generation,
            pair_index & U32,
            kind,
            flags,
            0,
            min(timeout_ms, U32),
            thread_ref,
        )
        start = self._slot(ticket)
        self._map[start : start + SLOT_SIZE] = body + SLOT_TAIL.pack(zlib.crc32(body), 0, 0, 0)
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
        """Record the end of a call. If its record was overwritten, only the group's counts change.

        This stores no word that `append` stores, so a signal handler or finaliser may call it while `append` runs.

        Args:
            ticket: from `append`.
            coll_seq: the call's collective sequence number; 0 if it has none of its own (p2p, monitored).
            state: `RecordState`. Only COMPLETED changes the group's highest completed sequence number.
            ended_ns: monotonic ns; 0: unknown.
        """
        words = self._words
        if self._is_there(ticket):
            words[self._slot(ticket) // 8 + SLOT_ENDED_WORD] = ended_ns << 2 | state
        group = self._groups.get(group_index)
        if group is not None and group.row:
            row = group.row
            words[row + ROW_ENDED] += 1
            if ended_ns:
                words[row + ROW_LAST_END] = ended_ns
            if state == RecordState.COMPLETED and coll_seq > words[row + ROW_COMPLETED]:
                words[row + ROW_COMPLETED] = coll_seq

    def wait(self, ticket: int, waited_ns: int) -> None:
        """Record when a thread began to wait for a call whose end only ``wait()`` reports.

        Args:
            ticket: from `append`.
            waited_ns: monotonic ns; `POSTED`: no thread waits for the call yet.
        """
        if self._is_there(ticket):
            self._words[self._slot(ticket) // 8 + SLOT_WAITED_WORD] = waited_ns

    def _is_there(self, ticket: int) -> bool:
        """Return True if the call's record is not overwritten."""
        return self._head - ticket < self._layout.capacity

    def _slot(self, ticket: int) -> int:
        """Return the offset in the file where the call's record is or was."""
        return self._layout.slots_start + ticket % self._layout.slots * SLOT_SIZE
