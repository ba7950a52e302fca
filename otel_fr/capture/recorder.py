"""Gives each call its numbers and writes it into the ring. What is on the training thread for each call is here."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from otel_fr.capture.completion import FutureCallback, Mode, mode_of
from otel_fr.capture.definitions import definition_of, steps_of
from otel_fr.capture.groups import Batch, Group, backend_of, describe, member_ranks
from otel_fr.capture.operations import Operator, flatten, key_function
from otel_fr.capture.signatures import Signature
from otel_fr.capture.sites import Sites
from otel_fr.capture.waits import Waits
from otel_fr.ring import KIND_COLLECTIVE, KIND_P2P, RingWriter, StaleGeneration

_log = logging.getLogger("otel_fr")

FLAG_COALESCED: Final = 1
"""Member of a coalesced batch: all members have one sequence id."""
MAX_SIGNATURES: Final = 65_536
_TRIES: Final = 4
IGNORE: Final = Mode.IGNORE


Call = tuple[int, int, int, Mode]
"""A recorded call whose end is awaited: ticket, group index, collective sequence id (0: has none), how the end will be
known. A plain tuple, as it is made on the training thread."""


class Recorder:
    """One rank's recording.

    Attributes:
        on: False: calls pass unrecorded.
        follow_ends: False: the interpreter is about to go, so nothing may call back later.
        groups: live groups by c10d name.
    """

    def __init__(self, c10d: ModuleType, torch: ModuleType, writer: RingWriter, libraries: tuple[str, ...]) -> None:
        self.on = True
        self.follow_ends = True
        self.lock = threading.RLock()
        self.groups: dict[str, Group] = {}
        self.futures = FutureCallback(self.end)
        self.sites = Sites(libraries)
        self._c10d = c10d
        self._types = torch._C._distributed_c10d
        self._tensor_type = torch.Tensor
        self._device = torch.device
        self.waits = Waits(self._types.Work, self.end, self.waited)
        self._writer = writer
        self._generation = writer.generation
        self._signature_count = 0
        self._local_id = 0
        # A signal handler or a finaliser may issue a collective, or see one end, while this very thread is writing.
        self._busy = False
        self._deferred: list[tuple[int, int, int, int, int]] = []

    # ---- groups

    def group_created(self, name: str, group: Any) -> None:
        """Begin to follow a ``ProcessGroup`` that torch has just registered."""
        with self.lock:
            self.group_gone(name)
            ours = self.groups[name] = Group(name, group.size(), group.rank())
            ranks = member_ranks(self._c10d, group)
            if ranks is not None:
                self._define_group(ours, group, ranks)

    def _define_group(self, ours: Group, group: Any, ranks: tuple[int, ...]) -> None:
        ours.ranks = ranks
        ours.index = self._writer.add_group(describe(self._c10d, group, ours.name, ranks, self._local_id))
        self._local_id += 1

    def group_gone(self, name: str | None) -> None:
        """Forget a group; None: all of them."""
        with self.lock:
            for gone in [name] if name is not None else list(self.groups):
                group = self.groups.pop(gone, None)
                if group is not None and group.index >= 0:
                    self._writer.remove_group(group.index)

    # ---- calls

    def failed(self) -> None:
        """Count an error of ours."""
        try:
            with self.lock:
                if self.on:
                    self._writer.count("hook_errors")
            _log.debug("otel-fr: a hook failed", exc_info=True)
        except Exception:  # noqa: BLE001, S110 - there is nobody left to tell
            pass

    def end(self, ticket: int, group_index: int, sequence_id: int, state: int, ended_ns: int) -> None:
        """Record the end of a call, from any thread. Never raises."""
        try:
            with self.lock:
                if not self.on:
                    return
                if self._busy:
                    self._deferred.append((ticket, group_index, sequence_id, state, ended_ns))
                else:
                    self._busy = True
                    try:
                        self._writer.complete(ticket, group_index, sequence_id, state, ended_ns)
                    finally:
                        self._busy = False
        except Exception:  # noqa: BLE001
            self.failed()

    def waited(self, ticket: int, waited_ns: int) -> None:
        """Record since when a call is waited for (`RingWriter.wait`), from any thread. Never raises.

        It is one store, so it may come in the midst of another write of this thread.
        """
        try:
            with self.lock:
                if self.on:
                    self._writer.wait(ticket, waited_ns)
        except Exception:  # noqa: BLE001
            self.failed()

    def close(self) -> None:
        """Record nothing more, and let the ring go. The file stays."""
        with self.lock:
            self.on = False
            self.waits.close()
            self.groups.clear()
            self._writer.close()

    def begin_function(self, operator: Operator) -> Callable[[tuple[Any, ...]], Call | None]:
        """A function that records a call of ``operator`` from its arguments.

        It gives what `end` takes later, or None for what is not recorded. Errors of ours are its caller's to catch.
        """
        groups = self.groups
        unbox = self._types.ProcessGroup.unbox
        world = self._c10d._world
        group_at = operator.group
        timeout_at = operator.timeout
        kind = operator.kind
        is_collective = kind == KIND_COLLECTIVE
        key_of = key_function(operator, self._tensor_type)
        find_site = self.sites.find
        ident = threading.get_ident
        clock = time.monotonic_ns
        held = self.waits.held
        lock = self.lock
        writer = self._writer
        append = writer.append
        sites = writer.sites
        threads = writer.threads
        slow = self._record

        def begin(args: tuple[Any, ...]) -> Call | None:
            process_group = unbox(args[group_at])
            group = groups.get(process_group.group_name)
            if group is None:
                return None  # made before recording began: its numbers are unknown
            thread = ident()
            if held:
                held.pop(thread, None)
            key = key_of(args)
            site_key, frame = find_site(2)
            timeout = args[timeout_at] if 0 <= timeout_at < len(args) else -1
            with lock:
                signature = group.signatures.get(key)
                site = sites.get(site_key)
                thread_ref = threads.get(thread)
                if (
                    is_collective
                    and signature is not None
                    and site is not None
                    and thread_ref is not None
                    and not self._busy
                    and signature.generation == writer.generation
                    and not (signature.coalesces and world._pg_coalesce_state)
                    and signature.mode is not IGNORE
                ):
                    # All is known: what `_record` does, without its calls.
                    self._busy = True
                    try:
                        sequence_id = group.coll + 1
                        group.coll += signature.step
                        op_id = group.op + 1
                        group.op += signature.op_step
                        index = group.index
                        if timeout <= 0:
                            timeout = signature.timeout_ms
                        ticket = append(
                            index,
                            signature.ref,
                            site,
                            thread_ref,
                            signature.generation,
                            kind,
                            0,
                            sequence_id,
                            group.p2p,
                            op_id,
                            0,
                            timeout,
                            clock(),
                        )
                        return ticket, index, sequence_id, signature.mode
                    finally:
                        self._busy = False
                        if self._deferred:
                            self._write_deferred()
                return slow(operator, process_group, group, args, key, site_key, frame, timeout)

        return begin

    def _record(
        self,
        operator: Operator,
        process_group: Any,
        group: Group,
        args: tuple[Any, ...],
        key: tuple[Any, ...],
        site_key: tuple[Any, ...],
        frame: Any,
        timeout: int,
    ) -> Call | None:
        """Record a call, whatever it needs; under the lock."""
        if self._busy:
            # Inside an interrupted write of this thread. The numbers must still agree with PyTorch's.
            self._count_only(operator, group)
            return None
        thread = threading.get_ident()
        writer = self._writer
        self._busy = True
        try:
            if group.index < 0:
                self._define_group(group, process_group, member_ranks(self._c10d, process_group) or ())
            numbers: tuple[int, int, int, int, int] | None = None
            for _ in range(_TRIES):
                signature = group.signatures.get(key)
                if signature is None or signature.generation != writer.generation:
                    signature = self._define_signature(operator, process_group, group, args, key)
                if signature.mode is IGNORE:
                    return None
                site = writer.sites.get(site_key)
                if site is None:
                    site = writer.define_site(site_key, self.sites.describe(frame))
                thread_ref = writer.threads.get(thread)
                if thread_ref is None:
                    thread_ref = writer.define_thread(thread, threading.current_thread().name)
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
                except StaleGeneration:  # a definition made room for itself by retiring the others
                    continue
                return ticket, group.index, coll_seq if operator.kind == KIND_COLLECTIVE else 0, signature.mode
            writer.count("dropped")
            return None
        finally:
            self._busy = False
            if self._deferred:
                self._write_deferred()

    def _write_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for item in deferred:
            self.end(*item)

    # ---- numbers

    def _numbers(
        self, operator: Operator, process_group: Any, group: Group, signature: Signature
    ) -> tuple[int, int, int, int, int]:
        """Flags, collective sequence id, p2p sequence id, operation id, pair index of a call; counts it."""
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

    def _count_only(self, operator: Operator, group: Group) -> None:
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
        self, operator: Operator, process_group: Any, group: Group, args: tuple[Any, ...], key: tuple[Any, ...]
    ) -> Signature:
        if self._signature_count >= MAX_SIGNATURES or self._generation != self._writer.generation:
            self._forget_signatures()
        tensors = [tensor for position in operator.tensors for tensor in flatten(args[position])]
        device = tensors[0].device if tensors else self._device("cpu")
        if device.type == "meta":
            signature = Signature(0, self._generation, IGNORE, 0, 0, 0, False, (0, 0, 0))
        else:
            if device.type not in group.backends:
                group.backends[device.type] = backend_of(self._c10d, process_group, device)
            backend, timeout_ms = group.backends[device.type]
            definition = definition_of(operator, group, args, backend)
            step, op_step = steps_of(operator, backend, group, len(definition.input_sizes))
            ref = self._writer.define_signature((group.index, key), definition)
            signature = Signature(
                ref=ref,
                generation=self._writer.generation,
                mode=mode_of(backend, operator.name != "monitored_barrier_"),
                step=step,
                op_step=op_step,
                timeout_ms=timeout_ms,
                coalesces=backend != "gloo",
                pair=(operator.code, -1 if definition.peer is None else definition.peer, definition.tag or 0),
            )
        group.signatures[key] = signature
        self._signature_count += 1
        return signature

    def _forget_signatures(self) -> None:
        for group in self.groups.values():
            group.signatures.clear()
        self._signature_count = 0
        self._generation = self._writer.generation
