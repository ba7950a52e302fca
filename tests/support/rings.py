"""Rings of imaginary ranks, written with the real ring writer, for tests of the files made from rings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from otel_fr import operations
from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.dumps.write import DumpContents, write_dump
from otel_fr.identity import group_id, run_id
from otel_fr.ring import (
    KIND_COLLECTIVE,
    KIND_P2P,
    POSTED,
    GroupDef,
    RecordState,
    RingReader,
    RingWriter,
    SignatureDef,
    SiteDef,
)

_UNTOLD = ("gather_into_tensor", "destroy_process_group", "abort_process_group")
OPERATIONS = tuple(name for name in operations.OPERATIONS if name not in _UNTOLD)
"""Operations that PyTorch's analyzer knows, or can read under another name."""

FRAME = ("/home/user/train.py", 42, "step")
RANKS = (0, 1, 2, 3)
RUN = run_id("job-7", 0, "nonce")
SIDES = {"input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "input_splits", "output_splits"}


def signature(operation: str, sizes: Sequence[Sequence[int]] = ((3, 4),), **fields: Any) -> SignatureDef:
    """Return a signature with one Float tensor for each of ``sizes`` on both sides, except for ``fields``."""
    shapes = tuple(tuple(size) for size in sizes)
    values: dict[str, Any] = {
        "operation": operation,
        "backend": "gloo",
        "input_sizes": shapes,
        "output_sizes": shapes,
        "reduce_op": None,
        "root": None,
        "peer": None,
        "tag": None,
        "input_splits": None,
        "output_splits": None,
        "input_bytes": 0,
        "output_bytes": 0,
    }
    values.update(fields)
    for side in ("input", "output"):
        values.setdefault(f"{side}_dtypes", ("Float",) * len(values[f"{side}_sizes"]))
    return SignatureDef(**values)


def float_signature(operation: str = "all_reduce", **fields: Any) -> SignatureDef:
    """Return the signature of a sum over one tensor of 3 x 4 Floats, except for ``fields``."""
    return signature(operation, **{"reduce_op": "sum", "input_bytes": 48, "output_bytes": 48, **fields})


class RankRing:
    """The ring of one rank, and the file made from it.

    Args:
        now: monotonic nanoseconds from which the ages of calls count, so that ranks agree however long writing takes.
            None: each age counts from the time of writing.
    """

    def __init__(
        self, folder: Path, rank: int, world_size: int, capacity: int = 1000, now: int | None = None, **meta: object
    ) -> None:
        facts = {
            "rank": rank,
            "local_rank": rank,
            "world_size": world_size,
            "job_id": "job-7",
            "attempt": 0,
            "run_id": RUN,
            "host": "node-1",
            "stall_seconds": 5.0,
            **meta,
        }
        self.rank = rank
        self._now = now
        self.thread = "MainThread"
        """The thread of the next calls."""
        folder.mkdir(parents=True, exist_ok=True)
        self.writer = RingWriter.create([folder], f"rank{rank}", capacity, facts)
        self._groups: dict[str, tuple[int, list[int]]] = {}
        self._pairs: dict[tuple[object, ...], int] = {}
        self.group("0", range(world_size), "default_pg")

    def group(self, name: str, ranks: Sequence[int], description: str) -> None:
        definition = GroupDef(group_id(name, ranks), name, description, tuple(ranks), "gloo", len(self._groups))
        self._groups[name] = (self.writer.add_group(definition), [0, 0, 0])

    def remove_group(self, name: str) -> None:
        """Note that the rank has destroyed the group."""
        self.writer.remove_group(self._groups[name][0])

    def call(
        self,
        what: SignatureDef,
        *,
        state: RecordState = RecordState.COMPLETED,
        group: str = "0",
        site: tuple[tuple[str, int, str], ...] = (("/job/train.py", 42, "step"),),
        kind: int = KIND_COLLECTIVE,
        age_s: float = 10.0,
        timeout_ms: int = 60_000,
        took_s: float = 0.5,
        waited_s: float | None = None,
    ) -> None:
        """Write a call that was enqueued ``age_s`` seconds ago. Unless it is in flight, it ended ``took_s`` later.

        ``waited_s``: seconds for which a thread has waited for a call with an end that only a wait observes; 0: no
        thread waits.
        """
        if what.operation in ("send", "recv"):
            kind = KIND_P2P
        index, counts = self._groups[group]
        counts[0] += kind == KIND_COLLECTIVE
        counts[1] += kind == KIND_P2P
        counts[2] += 1
        pair = (group, what.operation, what.peer, what.tag)
        pair_index = self._pairs[pair] = self._pairs.get(pair, -1) + 1
        now = time.monotonic_ns() if self._now is None else self._now
        issued = now - int(age_s * 1e9)
        writer = self.writer
        ticket = writer.append(
            index,
            writer.define_signature(what, what),
            writer.define_site(site, SiteDef(site)),
            writer.define_thread(len(self.thread), self.thread),
            writer.generation,
            kind,
            0,
            counts[0],
            counts[1],
            counts[2],
            pair_index if kind == KIND_P2P else 0,
            timeout_ms,
            issued,
        )
        if waited_s is not None:
            writer.wait(ticket, now - int(waited_s * 1e9) if waited_s else POSTED)
        if state is not RecordState.IN_FLIGHT:
            writer.complete(ticket, index, counts[0], state, issued + int(took_s * 1e9))

    def snapshot(
        self, reason: str = "stall", devices: Mapping[int, DeviceTimes] | None = None, **rank_info: object
    ) -> DumpContents:
        """Return the file's contents. ``devices``: times from PyTorch's recorder, by record id."""
        with RingReader.open(self.writer.path) as reader:
            return DumpContents.from_ring(reader, reason=reason, rank_info=rank_info, devices=devices)

    def write(self, folder: Path, fmt: Literal["pickle", "json"] = "pickle", **rank_info: Any) -> Path:
        """Write the file. ``rank_info``: as in `snapshot`, with ``devices``."""
        path = folder / f"trace_{self.rank}{'.json' if fmt == 'json' else ''}"
        write_dump(path, self.snapshot(**rank_info), fmt)
        return path
