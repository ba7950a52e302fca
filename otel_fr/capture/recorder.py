"""Numbers each call and writes it into the ring. This code runs on the training thread for every call."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from otel_fr.capture.completion import Callbacks, EndMode, FutureCallback
from otel_fr.capture.definitions import NOT_A_CALL, Arguments, CallKind, arguments_of, kind_of, unread_arguments
from otel_fr.capture.group_recorder import TRIES, GroupRecorder
from otel_fr.capture.groups import Batch, LiveGroup, backend_of, member_ranks, name_of
from otel_fr.capture.operations import Operator, key_function
from otel_fr.capture.signatures import UNKNOWN, CachedSignature, KnownCall
from otel_fr.capture.sites import SiteKey
from otel_fr.capture.waits import Waits
from otel_fr.capture.writers import Writer
from otel_fr.ring import KIND_COLLECTIVE, KIND_P2P, RecordState, RingWriter, StaleGeneration

_log = logging.getLogger("otel_fr")

FLAG_COALESCED: Final = 1
"""Member of a coalesced batch: all members have one sequence id."""
MAX_SIGNATURES: Final = 65_536
IGNORE: Final = EndMode.IGNORE
_NOWHERE: Final = 1 << 30
"""In place of the position of an argument that an operator does not have."""


PendingCall = tuple[int, int, int, EndMode]
"""A recorded call that has not ended: ticket, group index, sequence number of a collective (0: has none), and how its
end becomes known. A plain tuple, since it is created on the training thread."""


class Recorder(GroupRecorder):
    """One rank's recording.

    Attributes:
        follow_ends: False: the interpreter is exiting, so no callback may be registered.
        callbacks: of futures.
        Further ones are those of `GroupRecorder`.
    """

    def __init__(self, c10d: ModuleType, torch: ModuleType, writer: Writer, libraries: tuple[str, ...]) -> None:
        super().__init__(c10d, writer, libraries)
        self.follow_ends = True
        self.futures = FutureCallback(self.end)
        self.callbacks: Callbacks = self.futures
        self._types = torch._C._distributed_c10d
        self._tensor_type = torch.Tensor
        self._device = torch.device
        self._unbox = self._types.ProcessGroup.unbox
        self.waits = Waits(self._types, self.end, self.waited)
        self._generation = writer.generation
        self._signature_count = 0

    # ---- calls

    def waited(self, ticket: int, waited_ns: int) -> None:
        """Record since when a thread waits for a call (`RingWriter.wait`), from any thread. Never raises.

        It is a single store, so it may interrupt another write of this thread.
        """
        try:
            with self.lock:
                if self.on:
                    self._writer.wait(ticket, waited_ns)
        except Exception:  # noqa: BLE001
            self.failed()

    def close(self) -> None:
        """Stop recording and close the ring. The file stays."""
        with self.lock:
            self.on = False
            self.waits.close()
            self._forget_groups()
            self._writer.close()

    def kernel_function(
        self,
        operator: Operator,
        known_onward: Callable[[int], Any],
        find_onward: Callable[[Any], Any],
        follow: Callable[[PendingCall, Any], None],
    ) -> Callable[..., Any]:
        """The function that the dispatcher calls instead of the operator: it records the call and passes it on.

        It passes it on exactly once, also if the recording fails.

        It is long because a call between Python functions takes the training thread 0.05 us: a call that is known from
        an earlier one is recorded here, any other by `_record`.

        Args:
            known_onward, find_onward: what passes a call on: by the number of its dispatch key set, if that is known,
                and from the key set.
            follow: ``follow(call, result)`` records the end of a call that may not have ended yet.
        """
        writer = self._writer
        assert isinstance(writer, RingWriter)
        by_object = self._by_object
        find_group = self._find_group
        unbox = self._unbox
        batches = self._c10d._world._pg_coalesce_state
        group_at = operator.group
        timeout_at = operator.timeout if operator.timeout >= 0 else _NOWHERE
        key_of = key_function(operator, self._tensor_type)
        is_collective = operator.kind == KIND_COLLECTIVE
        find_site = self.sites.finder()
        ident = threading.get_ident
        clock = time.monotonic_ns
        held = self.waits.held
        acquire = self.lock.acquire
        release = self.lock.release
        append = writer.append_prepared
        here = self.threads.here
        record_new = self._record_new
        end = self.end
        completed = int(RecordState.COMPLETED)
        failed = int(RecordState.FAILED)
        on_return = EndMode.RETURN

        def kernel(keyset: Any, *args: Any) -> Any:
            number = keyset.raw_repr()
            call: PendingCall | None = None
            if self.on:
                try:
                    process_group = unbox(args[group_at])
                    group = by_object.get(id(process_group)) or find_group(process_group)
                    if group is not None:  # otherwise it was created before recording began: its numbers are unknown
                        if held:
                            held.pop(ident(), None)
                        key = key_of(args, number)
                        site = find_site() if is_collective else 0
                        timeout = args[timeout_at] if timeout_at < len(args) else -1
                        acquire()  # faster than "with"
                        try:
                            signature = group.signatures.get(key) or UNKNOWN
                            known = signature.calls.get(site)
                            if (
                                known is not None
                                and known.thread is here.known
                                and known.timeout_ms == timeout
                                and known.prepared.generation == writer.generation
                                and not self._busy
                                and not (batches and signature.coalesces)
                            ):
                                self._busy = True
                                try:
                                    sequence_id = group.coll + 1
                                    group.coll += signature.step
                                    op_id = group.op + 1
                                    group.op += signature.op_step
                                    ticket = append(known.prepared, sequence_id, group.p2p, op_id, clock())
                                    call = (ticket, group.index, sequence_id, signature.mode)
                                finally:
                                    self._busy = False
                            else:
                                call = record_new(operator, process_group, group, args, key, timeout)
                        finally:
                            release()
                except Exception:  # noqa: BLE001 - the collective continues
                    self.failed()
                    call = self.begin_unread(operator, args)
            onward = known_onward(number) or find_onward(keyset)
            if call is None:
                return onward(*args)
            try:
                result = onward(*args)
            except BaseException:
                end(call[0], call[1], call[2], failed, clock())
                raise
            if call[3] is on_return:
                end(call[0], call[1], call[2], completed, clock())
                return result
            try:
                follow(call, result)
            except Exception:  # noqa: BLE001 - the collective continues
                end(call[0], call[1], call[2], RecordState.UNKNOWN, 0)
                self.failed()
            return result

        return kernel

    def _record_new(
        self,
        operator: Operator,
        process_group: Any,
        group: LiveGroup,
        args: tuple[Any, ...],
        key: tuple[Any, ...],
        timeout: int,
    ) -> PendingCall | None:
        """Record a call of which something is new; called by the kernel, which holds the lock."""
        site, frame = self.sites.find(2)
        before = group.signatures.get(key)
        call = self._record(operator, process_group, group, args, key, site, frame, timeout)
        signature = group.signatures.get(key)
        # Not at the first occurrence of a signature: those of jobs with ever new shapes have no second one.
        if call is not None and operator.kind == KIND_COLLECTIVE and signature is not None and signature is before:
            self._know(group, signature, site, timeout)
        return call

    def _know(self, group: LiveGroup, signature: CachedSignature, site: SiteKey, timeout: int) -> None:
        """The next such call needs no look-up of what its record refers to."""
        writer = self._writer
        assert isinstance(writer, RingWriter)
        thread = self.threads.here.known
        site_ref = writer.sites.get(site)
        if site_ref is None or not thread[0] == signature.generation == writer.generation:
            return  # to record this one has retired what was known
        known = signature.calls.get(site)
        if known is not None and (known.thread, known.timeout_ms) == (thread, timeout):
            return  # it may be a C++ thread, which has a new state in Python at each call
        if self._signature_count >= MAX_SIGNATURES:
            self._evict_signatures()
            return
        milliseconds = timeout if timeout > 0 else signature.timeout_ms
        prepared = writer.prepare(group.index, signature.ref, site_ref, thread[1], milliseconds)
        self._signature_count += signature.know(site, KnownCall(prepared, thread, timeout))

    def begin_unread(self, operator: Operator, args: tuple[Any, ...]) -> PendingCall | None:
        """Record a call whose arguments cannot be read; see `unread_arguments`. Never raises."""
        try:
            process_group = self._unbox(args[operator.group])
            group = self.groups.get(name_of(process_group))
            if group is None:
                return None
            with self.lock:
                return self._record(operator, process_group, group, None, (operator.code,), 0, None, -1)
        except Exception:  # noqa: BLE001 - the collective continues; its error is counted
            _log.debug("otel-fr: a call is not recorded", exc_info=True)
            return None

    def _record(
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
        """Record a call, with any definitions it needs. The caller holds the lock. ``args``: None: they are unread."""
        if self._busy:
            # This interrupted a write of the same thread. The numbers must still agree with PyTorch's.
            self._count_only(operator, group)
            return None
        writer = self._writer
        self._busy = True
        try:
            if group.index < 0:
                self._define_group(group, process_group, member_ranks(self._c10d, process_group) or ())
            numbers: tuple[int, int, int, int, int] | None = None
            for _ in range(TRIES):
                signature = group.signatures.get(key)
                if signature is None or signature.generation != writer.generation:
                    signature = self._define_signature(operator, process_group, group, args, key)
                if signature.mode is IGNORE:
                    return None
                site = writer.sites.get(site_key)
                if site is None:
                    site = writer.define_site(site_key, self.sites.describe(frame))
                thread_ref = self.threads.reference()
                if numbers is None:
                    numbers = self._numbers(operator, process_group, group, signature)
                flags, coll_seq, p2p_seq, op_id, pair_index = numbers
                try:
                    ticket = writer.append(
                        group.index,
                        signature.ref,
                        site,
                        thread_ref,
                        signature.generation,
                        operator.kind,
                        flags,
                        coll_seq,
                        p2p_seq,
                        op_id,
                        pair_index,
                        timeout if timeout > 0 else signature.timeout_ms,
                        time.monotonic_ns(),
                    )
                except StaleGeneration:  # adding a definition retired the earlier ones to make room
                    continue
                return ticket, group.index, coll_seq if operator.kind == KIND_COLLECTIVE else 0, signature.mode
            writer.count("dropped")
            return None
        finally:
            self._busy = False

    # ---- numbers

    def _numbers(
        self, operator: Operator, process_group: Any, group: LiveGroup, signature: CachedSignature
    ) -> tuple[int, int, int, int, int]:
        """Count a call. Returns its flags, collective sequence id, p2p sequence id, operation id and pair index."""
        op_id = group.op + 1
        group.op += signature.op_step
        flags = 0
        batch = None
        if signature.coalesces:
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
            group.coll += signature.step
            if batch is not None:
                batch.coll_seq = coll_seq
            return flags, coll_seq, group.p2p, op_id, 0
        if operator.kind == KIND_P2P:
            pair_index = group.next_pair_index(signature.pair)
            if batch is None or not batch.p2p_seq:
                group.p2p += 1
                if batch is not None:
                    batch.p2p_seq = group.p2p
            return flags, group.coll, batch.p2p_seq if batch is not None else group.p2p, op_id, pair_index
        group.monitored += 1
        group.coll += signature.step
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
    ) -> CachedSignature:
        if self._signature_count >= MAX_SIGNATURES or self._generation != self._writer.generation:
            self._evict_signatures()
        arguments = unread_arguments(operator, process_group) if args is None else arguments_of(operator, args)
        kind = self.kind_of(operator, group, arguments, process_group)
        ref = 0
        if kind.definition is not None:
            ref = self._writer.define_signature((group.index, key), kind.definition)
        signature = CachedSignature(
            ref=ref,
            generation=self._writer.generation if kind.definition is not None else self._generation,
            mode=kind.mode,
            step=kind.step,
            op_step=kind.op_step,
            timeout_ms=kind.timeout_ms,
            coalesces=kind.coalesces,
            pair=kind.pair,
        )
        group.signatures[key] = signature
        self._signature_count += 1
        return signature

    def kind_of(self, operator: Operator, group: LiveGroup, arguments: Arguments, process_group: Any) -> CallKind:
        """What the call has in common with those of equal arguments."""
        if arguments.device == "meta":
            return NOT_A_CALL
        found = group.backends.get(arguments.device)
        if found is None:
            device = self._device(arguments.device)
            found = group.backends[arguments.device] = backend_of(self._c10d, process_group, device)
        return kind_of(operator, group, arguments, *found)

    def _evict_signatures(self) -> None:
        for group in self.groups.values():
            group.signatures.clear()
        self._signature_count = 0
        self._generation = self._writer.generation
