"""The ring writer over the compiled core: the twin of `otel_fr.ring.RingWriter`, to the byte."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from otel_fr.ring.definition_writer import MAX_INTERNED
from otel_fr.ring.definitions import MAX_GROUP_PAYLOAD, GroupDef, SignatureDef, SiteDef, fitting, thread_bytes
from otel_fr.ring.files import new_ring
from otel_fr.ring.layout import (
    COUNTERS,
    HEADER_COMPLETE,
    DefinitionKind,
    Layout,
    StaleGeneration,
    own_header,
)
from otel_fr.ring.status import StatusWriter

_COUNTER: Final = {name: index for index, name in enumerate(COUNTERS)}


class CompiledRingWriter(StatusWriter):
    """Writes one ring file. Thread safe, except for the description of the rank (`StatusWriter`).

    Attributes:
        core: the compiled part.
        signatures, sites, threads: as in `RingWriter`, of the definitions made here; the compiled recorder has its own.
    """

    __slots__ = ("_cached", "core", "signatures", "sites", "threads")

    def __init__(self, path: Path, mapping: mmap.mmap, layout: Layout, meta: Mapping[str, object]) -> None:
        """Use `create`. Writes the header into ``mapping``, which is all zeros."""
        from otel_fr.capture.native._ringwriter import Core

        super().__init__(path, mapping, layout)
        self.signatures: dict[Hashable, int] = {}
        self.sites: dict[Hashable, int] = {}
        self.threads: dict[int, int] = {}
        header = own_header(layout)
        mapping[: len(header)] = header
        self.core: Any = Core(
            mapping,
            layout.capacity,
            layout.slots,
            layout.half_size,
            layout.status,
            layout.progress,
            layout.progress_rows,
            layout.definitions,
            layout.slots_start,
            layout.file_size,
        )
        self._cached = self.core.generation
        self.set_meta(meta)
        self._words[HEADER_COMPLETE // 8] = 1

    @classmethod
    def create(
        cls, folders: Sequence[Path], name: str, capacity: int, meta: Mapping[str, object]
    ) -> CompiledRingWriter:
        """As `RingWriter.create`."""
        layout = Layout.of(capacity)
        with new_ring(folders, name, layout) as (path, mapping):
            return cls(path, mapping, layout, meta)

    @property
    def head(self) -> int:
        """Calls recorded so far."""
        head: int = self.core.head
        return head

    @property
    def generation(self) -> int:
        """Of the definitions; references of an earlier one are stale."""
        generation: int = self.core.generation
        return generation

    def count(self, name: str, n: int = 1) -> None:
        """Add to one of `COUNTERS`. Raises KeyError for another name."""
        self.core.count(_COUNTER[name], n)

    def close(self) -> None:
        """Close the mapping; the file stays. Later calls of any other method raise ValueError."""
        self.core.close()
        super().close()

    # ---- groups

    def add_group(self, definition: GroupDef) -> int:
        """As `RingWriter.add_group`."""
        short = definition.shortened().to_bytes()
        payload = definition.to_bytes()
        index: int = self.core.add_group(payload if len(payload) <= MAX_GROUP_PAYLOAD else short, short)
        self._forget_stale(self.generation)
        return index

    def remove_group(self, index: int) -> None:
        """Remove a group; its records stay readable. Unknown indexes are ignored."""
        self.core.remove_group(index)

    # ---- definitions

    def define(self, kind: DefinitionKind, definition: SignatureDef | SiteDef) -> tuple[int, int]:
        """Write a signature or call site. May flip.

        Returns:
            Its reference, and the generation in which that holds.

        Raises:
            DefinitionError: a number in it is negative or does not fit 64 bits. Nothing has changed then.
        """
        payload, truncated = fitting(definition)
        if truncated:
            self.count("truncated_definitions")
        found: tuple[int, int] = self.core.define(int(kind), payload)
        return found

    def define_name(self, ident: int, name: str) -> tuple[int, int]:
        """Write a thread's name. Returns what `define` returns."""
        found: tuple[int, int] = self.core.define(int(DefinitionKind.THREAD), thread_bytes(ident, name))
        return found

    def define_signature(self, key: Hashable, definition: SignatureDef) -> int:
        """As `RingWriter.define_signature`."""
        return self._remember(self.signatures, key, self.define(DefinitionKind.SIGNATURE, definition))

    def define_site(self, key: Hashable, definition: SiteDef) -> int:
        """As `RingWriter.define_site`."""
        return self._remember(self.sites, key, self.define(DefinitionKind.SITE, definition))

    def define_thread(self, ident: int, name: str) -> int:
        """As `RingWriter.define_thread`."""
        return self._remember(self.threads, ident, self.define_name(ident, name))

    def _remember(self, cache: dict[Any, int], key: Hashable, found: tuple[int, int]) -> int:
        ref, generation = found
        self._forget_stale(generation)
        if len(cache) >= MAX_INTERNED:
            cache.clear()
        cache[key] = ref
        return ref

    def _forget_stale(self, generation: int) -> None:
        if generation != self._cached:
            self._cached = generation
            for cache in (self.signatures, self.sites, self.threads):
                cache.clear()

    # ---- calls

    def append(self, group_index: int, *numbers: int) -> int:
        """As `RingWriter.append`."""
        try:
            ticket: int = self.core.append(group_index, *numbers)
        except OverflowError as error:
            raise struct.error(str(error)) from None
        if not ticket:
            self._forget_stale(self.generation)
            raise StaleGeneration
        return ticket

    def complete(self, ticket: int, group_index: int, coll_seq: int, state: int, ended_ns: int) -> None:
        """As `RingWriter.complete`."""
        self.core.complete(ticket, group_index, coll_seq, state, ended_ns)

    def wait(self, ticket: int, waited_ns: int) -> None:
        """As `RingWriter.wait`."""
        self.core.wait(ticket, waited_ns)
