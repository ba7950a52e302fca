"""A ring that a test writes call by call, and a monitor's reader of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from otel_fr.ring import KIND_COLLECTIVE, GroupDef, RingReader, RingWriter, SignatureDef, SiteDef
from tests.support.rings import FRAME, float_signature


class FollowedRing:
    """One rank's ring. ``meta``: the ring's metadata."""

    def __init__(self, folder: Path, capacity: int = 100, meta: Mapping[str, object] | None = None) -> None:
        self.writer = RingWriter.create([folder], "ring", capacity, dict(meta or {}))
        self.reader = RingReader.open(self.writer.path)
        self._numbers: Counter[int] = Counter()

    def add_group(
        self, number: int, name: str = "", description: str = "", backend: str = "gloo", *, is_serial: bool = False
    ) -> int:
        """Add a group of two ranks. Returns its number in the ring."""
        name = name or str(number)
        group = GroupDef(f"{number:016d}", name, description, (0, 1), backend, number, is_serial=is_serial)
        return self.writer.add_group(group)

    def append(
        self,
        group: int,
        at: int,
        signature: SignatureDef | None = None,
        *,
        kind: int = KIND_COLLECTIVE,
        number: int | None = None,
    ) -> tuple[int, int, int]:
        """Enqueue a call at ``at`` (monotonic ns): by default an all-reduce, and the group's next number.

        Returns:
            the arguments of `RingWriter.complete` for this call: ticket, group, number.
        """
        if number is None:
            self._numbers[group] += 1
            number = self._numbers[group]
        writer, what = self.writer, signature or float_signature()
        sig = writer.signatures.get(what) or writer.define_signature(what, what)
        site = writer.sites.get("p") or writer.define_site("p", SiteDef((FRAME,)))
        fields = (number, 1, number, 0, 600_000, at)
        return writer.append(group, sig, site, 0, writer.generation, kind, 0, *fields), group, number

    def close(self) -> None:
        self.reader.close()
        self.writer.close()
