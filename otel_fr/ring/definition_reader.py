"""Reads the definitions of a ring: the groups, signatures, call sites and threads that its records refer to.

Definitions are checked when they are read, because the file may be damaged or malicious. Decoded definitions are
cached.
"""

from __future__ import annotations

import mmap
import zlib
from dataclasses import replace
from typing import Final

from otel_fr.ring.codec import DefinitionError
from otel_fr.ring.definitions import GroupDef, SignatureDef, SiteDef, ThreadDef, thread_of
from otel_fr.ring.layout import (
    DEFINITION,
    DEFINITION_PREFIX,
    HALF_START,
    MAX_DEFINITION,
    DefinitionKind,
    Layout,
)

Definition = GroupDef | SignatureDef | SiteDef | ThreadDef
CallDefinitions = tuple[GroupDef, SignatureDef, SiteDef, ThreadDef]

_NO_SITE: Final = SiteDef(())
_NO_THREAD: Final = ThreadDef(0, "")
_EXPANDED: Final = 1 << 23
"""How many ranks and dtypes the definitions of one generation may expand to, beyond the bytes that encode them."""
_MAX_KNOWN: Final = 8192
"""How many decoded definitions of one generation are kept. Each takes about a kilobyte."""


class DefinitionReader:
    """Reads and caches the definitions of one ring.

    Attributes:
        of_calls: results of `of_call` by its arguments. Programs have few different calls, and one look-up costs less
            than four.
    """

    def __init__(self, mapping: mmap.mmap, layout: Layout) -> None:
        self._map = mapping
        self._layout = layout
        self._known: dict[int, dict[tuple[DefinitionKind, int], Definition]] = {}
        self._expanded: dict[int, int] = {}
        self.of_calls: dict[tuple[int, ...], CallDefinitions] = {}
        self._from_any: dict[SignatureDef, SignatureDef] = {}

    def of_call(self, *refs: int) -> CallDefinitions | None:
        """Return the definitions that a record refers to, or None if one is missing.

        ``refs`` are the record's generation and its references of group, signature, site and thread.
        """
        generation, group_ref, sig_ref, site_ref, thread_ref = refs
        group = self.find(generation, DefinitionKind.GROUP, group_ref)
        signature = self.find(generation, DefinitionKind.SIGNATURE, sig_ref)
        site = self.find(generation, DefinitionKind.SITE, site_ref) if site_ref else _NO_SITE
        thread = self.find(generation, DefinitionKind.THREAD, thread_ref) if thread_ref else _NO_THREAD
        if not (
            isinstance(group, GroupDef)
            and isinstance(signature, SignatureDef)
            and isinstance(site, SiteDef)
            and isinstance(thread, ThreadDef)
        ):
            return None
        if len(self.of_calls) >= _MAX_KNOWN:
            self.of_calls.clear()
        found = self.of_calls[refs] = group, signature, site, thread
        return found

    def from_any(self, signature: SignatureDef) -> SignatureDef:
        """Return the signature with ``any_source`` set. Equal signatures are one object."""
        if len(self._from_any) >= _MAX_KNOWN:
            self._from_any.clear()
        return self._from_any.setdefault(signature, replace(signature, any_source=True))

    def find(self, generation: int, kind: DefinitionKind, ref: int) -> Definition | None:
        """Return the definition, or None if it is missing or damaged."""
        known = self._known.get(generation)
        if known is None:
            # The writer keeps two generations, but a malicious file may claim any number.
            while len(self._known) >= 2:
                oldest = min(self._known)
                del self._known[oldest], self._expanded[oldest]
                self.of_calls.clear()
            known = self._known[generation] = {}
            self._expanded[generation] = 0
        found = known.get((kind, ref))
        if found is None:
            found = self._read(generation, kind, ref)
            if found is not None:
                if len(known) >= _MAX_KNOWN:
                    known.clear()
                    self.of_calls.clear()
                    self._expanded[generation] = 0
                known[kind, ref] = found
        return found

    def _read(self, generation: int, kind: DefinitionKind, ref: int) -> Definition | None:
        layout = self._layout
        offset = ref * 8
        if not HALF_START <= offset <= layout.half_size - DEFINITION.size or self._expanded[generation] > _EXPANDED:
            return None
        start = layout.half(generation) + offset
        length, of_generation, of_kind, crc = DEFINITION.unpack(self._map[start : start + DEFINITION.size])
        if of_generation != generation or of_kind != kind or length > MAX_DEFINITION:
            return None
        if offset + DEFINITION.size + length > layout.half_size:
            return None
        payload = self._map[start + DEFINITION.size : start + DEFINITION.size + length]
        if zlib.crc32(payload, zlib.crc32(DEFINITION_PREFIX.pack(length, of_generation, of_kind))) != crc:
            return None
        try:
            found, expanded = _decode(kind, payload)
        except DefinitionError:
            return None
        self._expanded[generation] += max(0, expanded - length)
        return found


def _decode(kind: DefinitionKind, payload: bytes) -> tuple[Definition, int]:
    """Decode a definition. Return it, and the number of items that its runs were expanded to."""
    if kind is DefinitionKind.GROUP:
        group = GroupDef.from_bytes(payload)
        return group, len(group.ranks)
    if kind is DefinitionKind.SIGNATURE:
        signature = SignatureDef.from_bytes(payload)
        created = len(signature.new_group.ranks) if signature.new_group is not None else 0
        return signature, len(signature.input_dtypes) + len(signature.output_dtypes) + created
    if kind is DefinitionKind.SITE:
        return SiteDef.from_bytes(payload), 0
    return thread_of(payload), 0
