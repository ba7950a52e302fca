"""The ring writer of the compiled engine. It behaves like `otel_fr.ring.RingWriter`; see the docstrings there."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_fr.ring.definition_writer import MAX_INTERNED
from otel_fr.ring.definitions import MAX_GROUP_PAYLOAD, GroupDef, SignatureDef, SiteDef, fitting, thread_bytes
from otel_fr.ring.layout import COUNTERS, DefinitionKind, Layout, StaleGeneration
from otel_fr.ring.status import StatusWriter

if TYPE_CHECKING:
    from otel_fr.capture.native._ringwriter import Core

_COUNTER: Final = {name: index for index, name in enumerate(COUNTERS)}


class CompiledRingWriter(StatusWriter):
    """Writes one ring file. Thread safe, except for the description of the rank (`StatusWriter`).

    Attributes:
        core: the compiled part.
        signatures, sites, threads: as in `RingWriter`, only for definitions made through this class. The compiled
            recorder has caches of its own.
    """

    __slots__ = ("_cached", "complete", "core", "remove_group", "signatures", "sites", "threads", "wait")

    def __init__(self, path: Path, mapping: mmap.mmap, layout: Layout) -> None:
        from otel_fr.capture.native._ringwriter import Core

        super().__init__(path, mapping, layout)
        self.signatures: dict[Hashable, int] = {}
        self.sites: dict[Hashable, int] = {}
        self.threads: dict[int, int] = {}
        self.core: Core = Core(
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
        self.complete, self.wait, self.remove_group = self.core.complete, self.core.wait, self.core.remove_group
        self._cached = self.core.generation

    @property
    def head(self) -> int:
        return self.core.head

    @property
    def generation(self) -> int:
        return self.core.generation

    def count(self, name: str, n: int = 1) -> None:
        self.core.count(_COUNTER[name], n)

    def close(self) -> None:
        self.core.close()
        super().close()

    # ---- groups

    def add_group(self, definition: GroupDef) -> int:
        short = definition.shortened().to_bytes()
        payload = definition.to_bytes()
        index = self.core.add_group(payload if len(payload) <= MAX_GROUP_PAYLOAD else short, short)
        self._forget_stale(self.generation)
        return index

    # ---- definitions

    def define(self, kind: DefinitionKind, definition: SignatureDef | SiteDef) -> tuple[int, int]:
        """Write a signature or call site. May flip.

        Returns:
            Its reference, and the generation in which the reference is valid.

        Raises:
            DefinitionError: a number in it is negative or does not fit 64 bits. Nothing has changed then.
        """
        payload, truncated = fitting(definition)
        if truncated:
            self.count("truncated_definitions")
        return self.core.define(int(kind), payload)

    def define_name(self, ident: int, name: str) -> tuple[int, int]:
        """Write a thread's name. Return the same as `define`."""
        return self.core.define(int(DefinitionKind.THREAD), thread_bytes(ident, name))

    def define_signature(self, key: Hashable, definition: SignatureDef) -> int:
        return self._remember(self.signatures, key, self.define(DefinitionKind.SIGNATURE, definition))

    def define_site(self, key: Hashable, definition: SiteDef) -> int:
        return self._remember(self.sites, key, self.define(DefinitionKind.SITE, definition))

    def define_thread(self, ident: int, name: str) -> int:
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
        try:
            ticket = self.core.append(group_index, *numbers)
        except OverflowError as error:
            raise struct.error(str(error)) from None
        if not ticket:
            self._forget_stale(self.generation)
            raise StaleGeneration
        return ticket
