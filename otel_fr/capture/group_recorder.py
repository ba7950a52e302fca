"""Records groups, and the calls that create and destroy them. `recorder` adds the recording of other calls."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Final, NamedTuple

from otel_fr.capture import split_groups
from otel_fr.capture.groups import LiveGroup, definition_of, describe, member_ranks, name_of
from otel_fr.capture.sites import Sites
from otel_fr.capture.threads import Threads
from otel_fr.capture.writers import Writer
from otel_fr.ring import KIND_GROUP, GroupDef, NewGroup, RecordState, SignatureDef, StaleGeneration

_log = logging.getLogger("otel_fr")

TRIES: Final = 4
"""Attempts to append a call: writing a definition that it needs may retire the earlier definitions."""


class _Begun(NamedTuple):
    """A group that is being created.

    Attributes:
        position: the group's index in the ring.
        ranks: the group's members.
        ticket: ticket of the call that creates the group; None: the call was dropped.
    """

    position: int
    ranks: tuple[int, ...]
    ticket: int | None


class GroupRecorder:
    """Records groups, and holds the state that the recording of their calls shares.

    Attributes:
        on: False if calls are not recorded.
        groups: live groups by c10d name.
        threads: defines the threads that enqueue calls.
    """

    def __init__(self, c10d: ModuleType, writer: Writer, libraries: tuple[str, ...]) -> None:
        self.on = True
        self.lock = threading.RLock()
        self.groups: dict[str, LiveGroup] = {}
        # Groups that only their members create, by c10d's name, until torch registers them.
        self._begun: dict[str, _Begun] = {}
        self.sites = Sites(libraries)
        self._c10d = c10d
        self.threads = Threads(writer)
        self._writer = writer
        self._local_id = 0
        # A signal handler or finaliser may call a collective while this same thread is writing.
        self._busy = False
        self._has_failed = False

    def failed(self) -> None:
        """Count an error in otel-fr's own code. The first one is logged as a warning."""
        try:
            with self.lock:
                if self.on:
                    self._writer.count("hook_errors")
                is_first, self._has_failed = not self._has_failed, True
            if is_first:
                _log.warning(
                    "otel-fr: a call could not be recorded; this rank's records are ignored when judging: %r",
                    sys.exc_info()[1],
                )
            _log.debug("otel-fr: a hook failed", exc_info=True)
        except Exception:  # noqa: BLE001, S110 - it cannot be reported anywhere
            pass

    def end(self, ticket: int, group_index: int, sequence_id: int, state: int, ended_ns: int) -> None:
        """Record the end of a call. May be called on any thread. Never raises."""
        if not self.on:  # in a forked child, a thread that does not exist there may hold the lock
            return
        try:
            with self.lock:
                if self.on:
                    self._writer.complete(ticket, group_index, sequence_id, state, ended_ns)
        except Exception:  # noqa: BLE001
            self.failed()

    def group_created(self, name: str, group: Any) -> None:
        """Start recording a ``ProcessGroup`` that torch has just registered."""
        with self.lock:
            if name in self.groups and split_groups.find(name) is group:
                return  # already recorded when torch's own code split it off
            self.group_gone(name)
            ours = self.groups[name] = LiveGroup(name, group.size(), group.rank())
            self._added(name)
            begun = self._begun.pop(name, None)
            if begun is not None:
                ours.created, ours.index, ours.ranks = 1, begun.position, begun.ranks
                self._defined(name, ours.index)
                return
            ranks = member_ranks(self._c10d, group)
            if ranks is not None:
                self._define_group(ours, group, ranks)

    def _define_group(self, ours: LiveGroup, group: Any, ranks: tuple[int, ...] | None = None) -> None:
        """Write the definition of a group. ``ranks``: its members; None: ask torch for them."""
        if ranks is None:
            ranks = member_ranks(self._c10d, group) or ()
        ours.ranks = ranks
        ours.index = self._add(describe(self._c10d, group, ours.name, ranks, self._local_id))
        self._defined(ours.name, ours.index)

    def renumber(self, find: Callable[[str], Any]) -> None:
        """Define the live groups again, because ranks have new numbers in the run. Calls keep counting.

        Args:
            find: returns the ``ProcessGroup`` of a name, or None if it no longer exists.
        """
        with self.lock:
            for name, ours in self.groups.items():
                group = find(name) if ours.index >= 0 else None
                if group is None:
                    continue
                before = ours.index
                self._define_group(ours, group)
                self._renumbered(before)

    def _renumbered(self, before: int) -> None:
        """Called when a group was defined again. ``before`` is its former index."""
        self._writer.remove_group(before)

    def _add(self, definition: GroupDef) -> int:
        self._local_id += 1
        return self._writer.add_group(definition)

    def group_gone(self, name: str | None) -> None:
        """Remove a group, or all groups (None)."""
        with self.lock:
            for gone in [name] if name is not None else list(self.groups):
                group = self.groups.pop(gone, None)
                if group is not None:
                    self._removed(gone, group.index)

    def _added(self, name: str) -> None:
        """Called when a group becomes known."""

    def _defined(self, name: str, index: int) -> None:
        """Called when a group has a definition in the ring."""

    def _removed(self, name: str, index: int) -> None:
        if index >= 0:
            self._writer.remove_group(index)

    def begin_group(self, parent: str, operation: str, new: NewGroup, timeout_ms: int) -> tuple[int, int] | None:
        """Record that this thread begins to create a process group.

        Args:
            parent: c10d's name of the group in which such calls are numbered: for ``new_group``, the default group.

        Returns:
            The ticket and group index that `end` takes. None if the call is not recorded. A call is only counted if
            this rank does not become a member and need not wait: a large job has thousands of such groups.
        """
        with self.lock:
            group = self.groups.get(parent)
            if group is None or not self.on:
                return None
            group.created += 1
            if group.global_rank(group.rank) not in new.ranks and not new.awaits_all:
                return None
            if group.index < 0 or self._busy:
                self._writer.count("dropped")
                return None
            return self._append_group_call(group.index, operation, group.created, new, timeout_ms)

    def begin_members_group(
        self, operation: str, new: NewGroup, backends: Iterable[str], timeout_ms: int
    ) -> tuple[int, int] | None:
        """Record that this thread begins to create a group that only its members create. This is the group's first
        call. `end_members_group` must follow.

        Args:
            backends: names of the new group's backends.

        Returns:
            As `begin_group`.
        """
        with self.lock:
            if not self.on:
                return None
            if self._busy:
                self._writer.count("dropped")
                return None
            index = self._add(definition_of(new.name, new.description, new.ranks, backends, self._local_id))
            begun = self._append_group_call(index, operation, 1, new, timeout_ms)
            self._begun[new.name] = _Begun(index, new.ranks, None if begun is None else begun[0])
            return begun

    def begin_destruction(self, process_group: Any, operation: str) -> tuple[int, int] | None:
        """Record that this thread begins to destroy a ``ProcessGroup``, as the group's next call of kind `KIND_GROUP`.

        Returns:
            As `begin_group`.
        """
        with self.lock:
            name = name_of(process_group)
            group = self.groups.get(name)
            if group is None or not self.on:
                return None
            if self._busy:
                self._writer.count("dropped")
                return None
            if group.index < 0:
                self._define_group(group, process_group)
            return self._append_group_call(group.index, operation, group.created + 1, None, 0)

    def count_split(self, parent: str) -> int:
        """Count a call that splits the group of that name. Return the number of earlier such calls."""
        with self.lock:
            group = self.groups.get(parent)
            if group is None:
                return 0
            group.splits += 1
            return group.splits - 1

    def end_members_group(self, name: str) -> None:
        """Note that the group's creation has ended. Remove the group if torch has not registered it. Never raises."""
        try:
            with self.lock:
                begun = self._begun.pop(name, None)
                if begun is not None:
                    self._writer.remove_group(begun.position)
        except Exception:  # noqa: BLE001
            self.failed()

    def end_run(self) -> None:
        """End this run, because the next run's default group was created. Creating it was this run's last call, which
        is recorded as completed."""
        with self.lock:
            for name, begun in list(self._begun.items()):
                if begun.ticket is not None:
                    self.end(begun.ticket, begun.position, 0, RecordState.COMPLETED, time.monotonic_ns())
                self.end_members_group(name)

    def _append_group_call(
        self, group_index: int, operation: str, number: int, new: NewGroup | None, timeout_ms: int
    ) -> tuple[int, int] | None:
        """Append a call that creates a group (``new``) or destroys one (``new`` is None). The caller holds the lock."""
        key, frame = self.sites.find(1)
        nothing = (None, None, None, None, None, None)
        definition = SignatureDef(operation, "", (), (), (), (), *nothing, 0, 0, new_group=new)
        writer = self._writer
        self._busy = True
        try:
            for _ in range(TRIES):
                signature = writer.define_signature((group_index, operation, number), definition)
                generation = writer.generation
                site = writer.sites.get(key) or writer.define_site(key, self.sites.describe(frame))
                thread = self.threads.reference()
                try:
                    now = time.monotonic_ns()
                    ticket = writer.append(
                        group_index, signature, site, thread, generation, KIND_GROUP, 0, number, 0, 0, 0,
                        timeout_ms, now,
                    )  # fmt: skip
                except StaleGeneration:
                    continue
                return ticket, group_index
            writer.count("dropped")
            return None
        finally:
            self._busy = False
