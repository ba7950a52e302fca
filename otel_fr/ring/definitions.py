"""The definitions that slots refer to, and their encoding: process groups, signatures, call sites, threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from otel_fr.identity import MAX_RANKS
from otel_fr.operations import NewGroup
from otel_fr.ring.codec import Decoder, DefinitionError, Encoder, Sizes
from otel_fr.ring.layout import DEFINITION, MAX_DEFINITION

MAX_PAYLOAD: Final = MAX_DEFINITION - DEFINITION.size
MAX_GROUP_PAYLOAD: Final = 16 * 1024
"""A group is written again in each generation, so it gets less room than a signature or a call site."""
MAX_THREAD_NAME: Final = 256

_SHORT: Final = 40
"""Bytes kept of each text of a shortened group, so that 256 such groups fit any half."""


def _clip(text: str, size: int) -> str:
    return text.encode("utf-8", "backslashreplace")[:size].decode("utf-8", "ignore")


def _rank_runs(ranks: Iterable[int]) -> list[tuple[int, int, int]]:
    """Return (first, step, count) for each run of ranks with equal steps."""
    runs: list[tuple[int, int, int]] = []
    for rank in ranks:
        if runs:
            first, step, count = runs[-1]
            if count == 1:
                runs[-1] = (first, rank - first, 2)
                continue
            if rank == first + step * count:
                runs[-1] = (first, step, count + 1)
                continue
        runs.append((rank, 0, 1))
    return runs


def _write_ranks(out: Encoder, ranks: Iterable[int]) -> None:
    runs = _rank_runs(ranks)
    out.uint(len(runs))
    for first, step, count in runs:
        out.sint(first)
        out.sint(step)
        out.uint(count)


def _read_ranks(source: Decoder) -> tuple[int, ...]:
    ranks: list[int] = []
    for _ in range(source.count()):
        first, step, count = source.sint(), source.sint(), source.uint()
        if count > MAX_RANKS - len(ranks):  # a few bytes of a malicious file can claim any number
            raise DefinitionError(f"a group of more than {MAX_RANKS} ranks")
        ranks.extend(range(first, first + step * count, step) if step else [first] * count)
    return tuple(ranks)


@dataclass(frozen=True, slots=True)
class GroupDef:
    """A process group.

    Attributes:
        id: 16 hex digits from `otel_fr.identity.group_id`.
        ranks: global ranks of the members, in group order; empty: unknown.
        local_id: order of creation in this process.
        truncated: True if the definition was too large. ``ranks`` is then empty, and the texts may be cut.
        is_serial: True if NCCL executes the group's sends, receives and collectives in one order.
    """

    id: str
    name: str
    description: str
    ranks: tuple[int, ...]
    backend: str
    local_id: int
    truncated: bool = False
    is_serial: bool = False

    def to_bytes(self) -> bytes:
        """Payload of the definition, of any length."""
        out = Encoder()
        out.uint(self.truncated | self.is_serial << 1)
        out.text(self.id)
        out.text(self.name)
        out.text(self.description)
        out.text(self.backend)
        out.uint(self.local_id)
        _write_ranks(out, self.ranks)
        return bytes(out.data)

    @classmethod
    def from_bytes(cls, data: bytes) -> GroupDef:
        """Raises DefinitionError if ``data`` is not a group."""
        source = Decoder(data)
        flags = source.uint()
        id_, name, description, backend = source.text(), source.text(), source.text(), source.text()
        local_id, ranks = source.uint(), _read_ranks(source)
        source.end()
        return cls(id_, name, description, ranks, backend, local_id, bool(flags & 1), bool(flags & 2))

    def shortened(self) -> GroupDef:
        """Return this group without its ranks and with short texts: at most 180 bytes."""
        texts = (self.id, self.name, self.description, self.backend)
        id_, name, description, backend = (_clip(text, _SHORT) for text in texts)
        return GroupDef(id_, name, description, (), backend, self.local_id, True, self.is_serial)


_ANY_SOURCE, _TRUNCATED, _REDUCE_OP, _ROOT, _PEER, _TAG, _IN_SPLITS, _OUT_SPLITS, _SAME_SIZES, _SAME_DTYPES, _NEW = (
    1 << bit for bit in range(11)
)


def _write_new_group(out: Encoder, new: NewGroup) -> None:
    out.uint(int(new.awaits_all))
    out.text(new.name)
    out.text(new.description)
    _write_ranks(out, new.ranks)


def _read_new_group(source: Decoder) -> NewGroup:
    awaits_all = source.uint() == 1
    name, description = source.text(), source.text()
    return NewGroup(name, description, _read_ranks(source), awaits_all)


def _without_ranks(new: NewGroup) -> NewGroup:
    """Return ``new`` without its ranks and with short texts."""
    return NewGroup(_clip(new.name, _SHORT), _clip(new.description, _SHORT), (), new.awaits_all)


@dataclass(frozen=True, slots=True)
class SignatureDef:
    """The operation and the arguments of a call.

    Attributes:
        operation: name in ``torch.distributed``.
        input_sizes, output_sizes: one shape per tensor.
        input_dtypes, output_dtypes: PyTorch scalar type names, one per tensor.
        reduce_op: in lower case; None: the operation has none.
        root, peer: global ranks.
        tag: for p2p only.
        input_splits, output_splits: splits of all_to_all_single; None: even.
        input_bytes, output_bytes: bytes of all tensors, including tensors that a truncated definition leaves out.
        any_source: True for a receive from any source. A reader also sets it if the message is unknown (`UNPAIRED`).
        truncated: True if the definition was too large. Lists then have only their first items.
        new_group: the group that the call creates, if any.
    """

    operation: str
    backend: str
    input_sizes: Sizes
    output_sizes: Sizes
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    reduce_op: str | None
    root: int | None
    peer: int | None
    tag: int | None
    input_splits: tuple[int, ...] | None
    output_splits: tuple[int, ...] | None
    input_bytes: int
    output_bytes: int
    any_source: bool = False
    truncated: bool = False
    new_group: NewGroup | None = None

    def to_bytes(self) -> bytes:
        """Payload of the definition, of any length."""
        out = Encoder()
        same_sizes = self.output_sizes == self.input_sizes
        same_dtypes = self.output_dtypes == self.input_dtypes
        out.uint(
            _ANY_SOURCE * self.any_source
            | _TRUNCATED * self.truncated
            | _REDUCE_OP * (self.reduce_op is not None)
            | _ROOT * (self.root is not None)
            | _PEER * (self.peer is not None)
            | _TAG * (self.tag is not None)
            | _IN_SPLITS * (self.input_splits is not None)
            | _OUT_SPLITS * (self.output_splits is not None)
            | _SAME_SIZES * same_sizes
            | _SAME_DTYPES * same_dtypes
            | _NEW * (self.new_group is not None)
        )
        out.text(self.operation)
        out.text(self.backend)
        out.uint(self.input_bytes)
        out.uint(self.output_bytes)
        if self.reduce_op is not None:
            out.text(self.reduce_op)
        for number in (self.root, self.peer, self.tag):
            if number is not None:
                out.sint(number)
        for splits in (self.input_splits, self.output_splits):
            if splits is not None:
                out.uints(splits)
        out.sizes(self.input_sizes)
        if not same_sizes:
            out.sizes(self.output_sizes)
        out.runs(self.input_dtypes)
        if not same_dtypes:
            out.runs(self.output_dtypes)
        if self.new_group is not None:
            _write_new_group(out, self.new_group)
        return bytes(out.data)

    @classmethod
    def from_bytes(cls, data: bytes) -> SignatureDef:
        """Raises DefinitionError if ``data`` is not a signature."""
        source = Decoder(data)
        flags = source.uint()
        operation, backend = source.text(), source.text()
        input_bytes, output_bytes = source.uint(), source.uint()
        reduce_op = source.text() if flags & _REDUCE_OP else None
        root = source.sint() if flags & _ROOT else None
        peer = source.sint() if flags & _PEER else None
        tag = source.sint() if flags & _TAG else None
        input_splits = source.uints() if flags & _IN_SPLITS else None
        output_splits = source.uints() if flags & _OUT_SPLITS else None
        input_sizes = source.sizes()
        output_sizes = input_sizes if flags & _SAME_SIZES else source.sizes()
        input_dtypes = source.runs()
        output_dtypes = input_dtypes if flags & _SAME_DTYPES else source.runs()
        new_group = _read_new_group(source) if flags & _NEW else None
        source.end()
        return cls(
            operation=operation,
            backend=backend,
            input_sizes=input_sizes,
            output_sizes=output_sizes,
            input_dtypes=input_dtypes,
            output_dtypes=output_dtypes,
            reduce_op=reduce_op,
            root=root,
            peer=peer,
            tag=tag,
            input_splits=input_splits,
            output_splits=output_splits,
            input_bytes=input_bytes,
            output_bytes=output_bytes,
            any_source=bool(flags & _ANY_SOURCE),
            truncated=bool(flags & _TRUNCATED),
            new_group=new_group,
        )

    def first(self, count: int) -> SignatureDef:
        """Return this signature with the first ``count`` items of each list and dimensions of each shape."""
        return replace(
            self,
            operation=_clip(self.operation, 256),
            backend=_clip(self.backend, 256),
            reduce_op=None if self.reduce_op is None else _clip(self.reduce_op, 256),
            input_sizes=tuple(size[:count] for size in self.input_sizes[:count]),
            output_sizes=tuple(size[:count] for size in self.output_sizes[:count]),
            input_dtypes=self.input_dtypes[:count],
            output_dtypes=self.output_dtypes[:count],
            input_splits=None if self.input_splits is None else self.input_splits[:count],
            output_splits=None if self.output_splits is None else self.output_splits[:count],
            truncated=True,
            new_group=None if self.new_group is None else _without_ranks(self.new_group),
        )


@dataclass(frozen=True, slots=True)
class SiteDef:
    """The place in the program where a call was made.

    Attributes:
        frames: (file, line, function), the user's frame first, then outward.
        truncated: True if the definition was too large. Outer frames are then missing, or texts are cut.
    """

    frames: tuple[tuple[str, int, str], ...]
    truncated: bool = False

    @property
    def text(self) -> str:
        """``"file:line function"`` of the user's frame; empty if unknown."""
        if not self.frames:
            return ""
        file, line, function = self.frames[0]
        return f"{file}:{line} {function}"

    def to_bytes(self) -> bytes:
        """Payload of the definition, of any length."""
        out = Encoder()
        out.uint(int(self.truncated))
        out.uint(len(self.frames))
        for file, line, function in self.frames:
            out.text(file)
            out.uint(line)
            out.text(function)
        return bytes(out.data)

    @classmethod
    def from_bytes(cls, data: bytes) -> SiteDef:
        """Raises DefinitionError if ``data`` is not a call site."""
        source = Decoder(data)
        truncated = source.uint() == 1
        frames = tuple([(source.text(), source.uint(), source.text()) for _ in range(source.count())])
        source.end()
        return cls(frames, truncated)

    def first(self, count: int) -> SiteDef:
        """Return this site with its first ``count`` frames and texts of at most 4096 bytes."""
        frames = tuple((_clip(file, 4096), line, _clip(name, 4096)) for file, line, name in self.frames[:count])
        return SiteDef(frames, truncated=True)


def fitting(definition: SignatureDef | SiteDef) -> tuple[bytes, bool]:
    """Return the payload of a definition, truncated if it would not fit, and True if it is truncated."""
    payload = definition.to_bytes()
    if len(payload) <= MAX_PAYLOAD:
        return payload, definition.truncated
    count = 4096
    while len(payload) > MAX_PAYLOAD:
        payload = definition.first(count).to_bytes()
        count //= 2
    return payload, True


def thread_bytes(ident: int, name: str) -> bytes:
    """Return the payload of a thread's definition."""
    out = Encoder()
    out.uint(ident & (1 << 64) - 1)
    out.text(_clip(name, MAX_THREAD_NAME))
    return bytes(out.data)


class ThreadDef(NamedTuple):
    """A thread that enqueues calls: its `threading.get_ident` (0: unknown) and its name (empty: unknown)."""

    ident: int
    name: str


def thread_of(data: bytes) -> ThreadDef:
    """Decode the payload of a thread. Raises DefinitionError if it is something else."""
    source = Decoder(data)
    thread = ThreadDef(source.uint(), source.text())
    source.end()
    return thread
