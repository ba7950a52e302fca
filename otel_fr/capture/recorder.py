"""Numbers each call and writes it into the ring. This code runs on the training thread for every call."""

from __future__ import annotations

import logging
import time
from functools import partial
from types import ModuleType
from typing import Any, Final, NamedTuple

from otel_fr.capture.completion import EndMode, FutureCallback
from otel_fr.capture.definitions import NOT_A_CALL, Arguments, CallKind, arguments_of, kind_of, unread_arguments
from otel_fr.capture.group_recorder import TRIES, GroupRecorder
from otel_fr.capture.groups import Batch, LiveGroup, backend_of, name_of
from otel_fr.capture.operations import Operator, key_of
from otel_fr.capture.sites import SiteKey
from otel_fr.capture.waits import Waits
from otel_fr.capture.writers import Writer
from otel_fr.ring import KIND_COLLECTIVE, KIND_P2P, RecordState, StaleGeneration

_log = logging.getLogger("otel_fr")

FLAG_COALESCED: Final = 1
"""The call belongs to a coalesced batch, whose members share one sequence number."""
MAX_SIGNATURES: Final = 65_536


class PendingCall(NamedTuple):
    """A recorded call that has not ended.

    Attributes:
        sequence_id: the collective's sequence number; 0: the call is not a collective.
        mode: how the end of the call becomes known.
    """

    ticket: int
    group_index: int
    sequence_id: int
    mode: EndMode


class Recorder(GroupRecorder):
    """Records the calls of one rank.

    Attributes:
        follow_ends: False while the interpreter exits: no callback may be registered then.
        futures: receives the ends of calls that have a future.
        For the others see `GroupRecorder`.
    """

    def __init__(self, c10d: ModuleType, torch: ModuleType, writer: Writer, libraries: tuple[str, ...]) -> None:
        super().__init__(c10d, writer, libraries)
        self.follow_ends = True
        self.futures = FutureCallback(self.end)
        self._types = torch._C._distributed_c10d
        self._device = torch.device
        self._unbox = self._types.ProcessGroup.unbox
        self.waits = Waits(self._types, self.end, self.waited)
        # Keys: group index and `operations.key_of`. The kinds are kept without their definitions, which are in the ring
        # for the current generation.
        self._kinds: dict[tuple[Any, ...], CallKind] = {}
        self._generation = writer.generation

    # ---- calls

    def waited(self, ticket: int, waited_ns: int) -> None:
        """Record since when a thread waits for a call (`RingWriter.wait`). May be called on any thread. Never raises.

        This is a single store, so it may interrupt another write of the same thread.
        """
        try:
            with self.lock:
                if self.on:
                    self._writer.wait(ticket, waited_ns)
        except Exception:  # noqa: BLE001
            self.failed()

    def outstanding(self) -> int:
        """Return the number of callbacks that a backend still holds."""
        return self.futures.outstanding()

    def close(self) -> None:
        """Stop recording and close the ring. The file stays."""
        with self.lock:
            self.on = False
            self.waits.close()
            self.groups.clear()
            self._writer.close()

    def begin(self, operator: Operator, args: tuple[Any, ...]) -> PendingCall | None:
        """Record a call for the kernel that the dispatcher has called. None: it is not recorded. Never raises."""
        if not self.on:
            return None
        try:
            process_group = self._unbox(args[operator.group])
            if name_of(process_group) not in self.groups:
                return None  # created before recording began: its numbers are unknown
            self.waits.let_go()
            key = key_of(operator, args)
            site, frame = self.sites.find(2)
            timeout = args[operator.timeout] if 0 <= operator.timeout < len(args) else -1
            return self._record(operator, process_group, args, key, site, frame, timeout)
        except Exception:  # noqa: BLE001 - the collective continues
            self.failed()
            return self._begin_unread(operator, args)

    def follow(self, call: PendingCall, result: Any) -> None:
        """Record the end of a call whose operator has returned: now, or once the call ends. Never raises."""
        try:
            if call.mode is EndMode.RETURN:
                self.ended(call, RecordState.COMPLETED)
            elif call.mode is EndMode.WORK and self.follow_ends:
                self._follow_work(call, self._types.Work.unbox(result[-1] if type(result) is tuple else result))
            else:
                self.ended(call, RecordState.UNKNOWN)
        except Exception:  # noqa: BLE001 - the collective continues
            self.ended(call, RecordState.UNKNOWN)
            self.failed()

    def _follow_work(self, call: PendingCall, work: Any) -> None:
        try:
            future = work.get_future()
        except Exception:  # noqa: BLE001 - "not implemented": it depends on the operator and torch's version
            self.waits.follow(work, call.ticket, call.group_index, call.sequence_id)
        else:
            # Looked up each time: `FutureCallback` counts references to the function, so nothing else may hold one.
            future.add_done_callback(partial(self.futures.function, call.ticket, call.group_index, call.sequence_id))

    def ended(self, call: PendingCall, state: RecordState) -> None:
        """Record that a call has ended now, or that its end will not become known. Never raises."""
        now = 0 if state is RecordState.UNKNOWN else time.monotonic_ns()
        self.end(call.ticket, call.group_index, call.sequence_id, state, now)

    def _begin_unread(self, operator: Operator, args: tuple[Any, ...]) -> PendingCall | None:
        """Record a call whose arguments cannot be read; see `unread_arguments`. Never raises."""
        try:
            return self._record(operator, self._unbox(args[operator.group]), None, (operator.code, None), 0, None, -1)
        except Exception:  # noqa: BLE001 - the collective continues; its error is counted
            _log.debug("otel-fr: could not record a call", exc_info=True)
            return None

    def _record(
        self,
        operator: Operator,
        process_group: Any,
        args: tuple[Any, ...] | None,
        key: tuple[Any, ...],
        site_key: SiteKey,
        frame: Any,
        timeout: int,
    ) -> PendingCall | None:
        """Record a call and any definitions it needs. ``args`` is None if the arguments cannot be read."""
        with self.lock:
            group = self.groups.get(name_of(process_group))
            if group is None:
                return None
            if self._busy:
                # This call interrupted a write of the same thread. The numbers must still agree with PyTorch's.
                self._count_only(operator, group)
                return None
            self._busy = True
            try:
                if group.index < 0:
                    self._define_group(group, process_group)
                return self._append(operator, process_group, group, args, (group.index, *key), site_key, frame, timeout)
            finally:
                self._busy = False

    def _append(
        self,
        operator: Operator,
        process_group: Any,
        group: LiveGroup,
        args: tuple[Any, ...] | None,
        key: tuple[Any, ...],
        site_key: SiteKey,
        frame: Any,
        timeout: int,
    ) -> PendingCall | None:
        writer = self._writer
        numbers: tuple[int, int, int, int, int] | None = None
        for _ in range(TRIES):
            kind = self._kinds.get(key)
            signature = writer.signatures.get(key)
            if kind is None or (signature is None and kind.mode is not EndMode.IGNORE):
                kind, signature = self._define_signature(operator, process_group, group, args, key)
            if signature is None:
                return None
            generation = writer.generation
            site = writer.sites.get(site_key) or writer.define_site(site_key, self.sites.describe(frame))
            thread = self.threads.reference()
            if numbers is None:
                numbers = self._numbers(operator, process_group, group, kind)
            flags, coll_seq, p2p_seq, op_id, pair_index = numbers
            try:
                ticket = writer.append(
                    group.index,
                    signature,
                    site,
                    thread,
                    generation,
                    operator.kind,
                    flags,
                    coll_seq,
                    p2p_seq,
                    op_id,
                    pair_index,
                    timeout if timeout > 0 else kind.timeout_ms,
                    time.monotonic_ns(),
                )
            except StaleGeneration:  # adding a definition retired the earlier ones to make room
                continue
            return PendingCall(ticket, group.index, coll_seq if operator.kind == KIND_COLLECTIVE else 0, kind.mode)
        writer.count("dropped")
        return None

    # ---- numbers

    def _numbers(
        self, operator: Operator, process_group: Any, group: LiveGroup, kind: CallKind
    ) -> tuple[int, int, int, int, int]:
        """Count a call. Return its flags, collective and p2p sequence numbers, operation number and pair index."""
        op_id = group.op + 1
        group.op += kind.op_step
        flags = 0
        batch = None
        if kind.coalesces:
            state = self._c10d._world._pg_coalesce_state
            if state and process_group in state:
                flags = FLAG_COALESCED
                batch = state[process_group]
                if type(batch) is not Batch:
                    batch = state[process_group] = Batch(batch)
        if operator.kind == KIND_COLLECTIVE:
            if batch is not None and batch.coll_seq:
                return flags, batch.coll_seq, group.p2p, op_id, 0
            coll_seq = group.coll + 1
            group.coll += kind.step
            if batch is not None:
                batch.coll_seq = coll_seq
            return flags, coll_seq, group.p2p, op_id, 0
        if operator.kind == KIND_P2P:
            pair_index = group.next_pair_index(kind.pair)
            if batch is None or not batch.p2p_seq:
                group.p2p += 1
                if batch is not None:
                    batch.p2p_seq = group.p2p
            return flags, group.coll, batch.p2p_seq if batch is not None else group.p2p, op_id, pair_index
        group.monitored += 1
        group.coll += kind.step
        return flags, group.monitored, group.p2p, op_id, 0

    def _count_only(self, operator: Operator, group: LiveGroup) -> None:
        group.op += 1
        if operator.kind == KIND_COLLECTIVE:
            group.coll += 1
        elif operator.kind == KIND_P2P:
            group.p2p += 1
        else:
            group.monitored += 1
        self._writer.count("dropped")

    # ---- definitions (once for each new signature)

    def _define_signature(
        self,
        operator: Operator,
        process_group: Any,
        group: LiveGroup,
        args: tuple[Any, ...] | None,
        key: tuple[Any, ...],
    ) -> tuple[CallKind, int | None]:
        """Return the kind of call, and the signature's reference in the ring (None if the call is not recorded)."""
        writer = self._writer
        arguments = unread_arguments(operator, process_group) if args is None else arguments_of(operator, args)
        kind = self.kind_of(operator, group, arguments, process_group)
        signature = None if kind.definition is None else writer.define_signature(key, kind.definition)
        if len(self._kinds) >= MAX_SIGNATURES or self._generation != writer.generation:
            self._kinds.clear()
            self._generation = writer.generation
        self._kinds[key] = kind._replace(definition=None)
        return kind, signature

    def kind_of(self, operator: Operator, group: LiveGroup, arguments: Arguments, process_group: Any) -> CallKind:
        """Return what the call has in common with calls of equal arguments."""
        if arguments.device == "meta":
            return NOT_A_CALL
        found = group.backends.get(arguments.device)
        if found is None:
            device = self._device(arguments.device)
            found = group.backends[arguments.device] = backend_of(self._c10d, process_group, device)
        return kind_of(operator, group, arguments, *found)
