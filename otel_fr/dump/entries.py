"""The entries of a flight-recorder file, whoever wrote it, as `Entry`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_fr.dump import names
from otel_fr.dump.model import Entry, Source
from otel_fr.dump.safe import UnreadableDump
from otel_fr.match.model import Signature, Sizes, State, Stream

MAX_NUMBERS = 100_000_000
"""Numbers in the sizes of one file: a small pickle can refer to one long list many times."""

Signatures = dict[tuple[object, ...], Signature]

_MAX_DIMENSIONS = 64
"""PyTorch's limit of a tensor's dimensions."""

_MAX_DTYPES = 4096

_STATES = {state.value: state for state in State}
_STREAMS: tuple[Stream, ...] = ("collective", "p2p", "monitored_barrier")
_UNKNOWN_SPLITS: tuple[int, ...] = ()
_OTHERS_CODE = ("/torch/", "/otel_fr/", "/torchcomms/", "<frozen ")
"""Parts of the paths of frames between a collective and the line of the user's code that asked for it."""


def integer(value: object) -> int | None:
    """An integer, or a text that is one (PyTorch's JSON has such); None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) < 20:
        try:
            return int(value)
        except ValueError:
            return None
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _seconds(value: object, scale: float = 1.0) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0:
        return value / scale
    return None


def _checked_sizes(shapes: Sizes) -> Sizes:
    if shapes == ((),) or not all(type(number) is int for shape in shapes for number in shape):
        return ()
    return shapes


def _dtypes(value: object) -> tuple[str, ...]:
    """Names (checked later). A tensor has one: many equal ones tell no more than a few, and might be a trap."""
    return tuple(value[:_MAX_DTYPES]) if type(value) is list else ()


def _checked_dtypes(names: tuple[object, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if isinstance(name, str) and name)


def _splits(value: object) -> tuple[int, ...] | None:
    return tuple(value) if isinstance(value, list) and all(type(number) is int for number in value) else None


class EntryReader:
    """Reads the entries of one file.

    Attributes:
        groups: others' files: `Entry.group` -> (name, description). local_ids: ``pg_id`` -> `Entry.group`.
        notes: what was found odd, as sentences.
    """

    def __init__(self, source: Source, written_ns: int | None, signatures: Signatures) -> None:
        """Of one file.

        Args:
            written_ns: when the file was written, on the clock of ``otel_fr_issued_ns``; None: not known.
            signatures: those of the files read before; equal ones become one object. Added to.
        """
        self.groups: dict[str, tuple[str, str]] = {}
        self.local_ids: dict[int, str] = {}
        self.notes: list[str] = []
        self._own = source == "otel-fr"
        self._written_ns = written_ns
        self._signatures = signatures
        self._numbers = 0
        self._names: dict[str, names.Name] = {}
        self._sites: dict[int, str] = {}

    def read(self, raw: list[Any]) -> list[Entry]:
        """All usable entries, oldest first."""
        found: list[tuple[Entry, names.Name]] = []
        unusable = 0
        for item in raw:
            try:
                entry = self._own_entry(item) if self._own else self._entry(item)
            except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
                unusable += 1
                continue
            if entry is not None:
                found.append(entry)
        if unusable:
            self.notes.append(f"{unusable} of {len(raw)} entries lack fields that every entry has; they were left out")
        if self._own:
            return [entry for entry, _ in found]
        return self._newest_lives(_batches(found))

    # Ours.

    def _own_entry(self, item: Mapping[str, Any]) -> tuple[Entry, names.Name]:
        issued, ended = item["otel_fr_issued_ns"], item["otel_fr_ended_ns"]
        stream = item["otel_fr_kind"]
        if stream not in _STREAMS or not isinstance(item["otel_fr_op"], str):
            raise ValueError
        truncated = item.get("otel_fr_truncated") is True
        ins = () if truncated else item.get("otel_fr_input_sizes", item["input_sizes"])
        outs = () if truncated else item.get("otel_fr_output_sizes", item["output_sizes"])
        signature = self._signature(
            item["otel_fr_op"],
            self._sizes(ins),
            self._sizes(outs),
            () if truncated else _dtypes(item["input_dtypes"]),
            () if truncated else _dtypes(item["output_dtypes"]),
            _text(item.get("otel_fr_reduce_op")),
            integer(item.get("otel_fr_root")),
            integer(item.get("otel_fr_peer")),
            integer(item.get("otel_fr_tag")),
            _UNKNOWN_SPLITS if truncated else _splits(item.get("otel_fr_input_splits")),
            _UNKNOWN_SPLITS if truncated else _splits(item.get("otel_fr_output_splits")),
            item.get("otel_fr_any_source") is True,
        )
        age = None if self._written_ns is None else max(self._written_ns - issued, 0) / 1e9
        entry = Entry(
            str(item["otel_fr_group"]),
            stream,
            int(item["otel_fr_seq"]),
            int(item["record_id"]),
            signature,
            _STATES[item["otel_fr_state"]],
            integer(item.get("otel_fr_pair_index")),
            age,
            None if ended is None else (ended - issued) / 1e9,
            _seconds(item.get("otel_fr_gap_s")),
            _seconds(item.get("timeout_ms"), 1e3) or None,
            _text(item.get("otel_fr_error")),
            self._site(item.get("frames"), whole=True),
        )
        return entry, names.Name("", signature.operation, signature.operation)

    # Others'.

    def _entry(self, item: Mapping[str, Any]) -> tuple[Entry, names.Name]:
        group_name, description = item["process_group"]
        key = f"{group_name}\x1f{description}"
        if key not in self.groups:
            self.groups[key] = (str(group_name), str(description))
        local = item.get("pg_id")
        if isinstance(local, int):
            self.local_ids.setdefault(local, key)
        text = item["profiling_name"]
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = names.parse(text)
        p2p = item.get("is_p2p") is True or name.operation in ("send", "recv")
        peer = name.destination if name.operation == "send" else name.source
        operation = name.operation
        ins, outs = self._sizes(item["input_sizes"]), self._sizes(item["output_sizes"])
        splits: tuple[int, ...] | None = None
        if operation in ("all_to_all", "all_to_all_single"):
            # NCCL records both alike, and no recorder the splits.
            operation = "all_to_all_single" if len(ins) == len(outs) == 1 else operation
            splits = _UNKNOWN_SPLITS if operation == "all_to_all_single" else None
        signature = self._signature(
            operation,
            ins,
            outs,
            _dtypes(item["input_dtypes"]),
            _dtypes(item["output_dtypes"]),
            None,
            None,
            peer,
            0 if p2p and operation != names.COALESCED else None,
            splits,
            splits,
            name.any_source or (p2p and peer is None),
        )
        # gloo and torchcomms on a CPU never leave "scheduled": being retired is what tells.
        completed = item.get("retired") is True or item.get("state") == "completed"
        created, ended = integer(item.get("time_created_ns")), integer(item.get("time_discovered_completed_ns"))
        duration = _seconds(item.get("duration_ms"), 1e3)
        if duration is None and completed and created and ended:
            duration = max(ended - created, 0) / 1e9
        entry = Entry(
            key,
            "p2p" if p2p else "collective",
            integer(item["p2p_seq_id" if p2p else "collective_seq_id"]) or 0,
            integer(item["record_id"]) or 0,
            signature,
            State.COMPLETED if completed else State.IN_FLIGHT,
            None,
            None,
            duration,
            None,
            _seconds(item.get("timeout_ms"), 1e3) or None,
            None,
            self._site(item.get("frames"), whole=False),
        )
        return entry, name

    def _newest_lives(self, entries: list[Entry]) -> list[Entry]:
        """Without the calls of groups that were destroyed and made again: their numbers began anew."""
        newer: dict[str, Entry] = {}
        gone: set[str] = set()
        kept: list[Entry] = []
        for entry in reversed(entries):
            if entry.stream == "collective" and entry.group not in gone:
                after = newer.get(entry.group, entry)
                same_batch = after is entry or (entry.batch is not None and entry.batch == after.batch)
                if entry.sequence_id > after.sequence_id or (entry.sequence_id == after.sequence_id and not same_batch):
                    gone.add(entry.group)
                newer[entry.group] = entry
            if entry.group not in gone:
                kept.append(entry)
        if len(kept) < len(entries):
            left = len(entries) - len(kept)
            self.notes.append(f"{left} calls of process groups that were made anew later were left out")
        return kept[::-1]

    # Both.

    def _signature(self, *fields: Any) -> Signature:
        """The signature of these fields, whose sizes and dtypes are checked only when they are seen first."""
        known = self._signatures.get(fields)
        if known is None:
            operation, ins, outs, in_types, out_types, *rest = fields
            sizes = _checked_sizes(ins), _checked_sizes(outs)
            known = Signature(operation, *sizes, _checked_dtypes(in_types), _checked_dtypes(out_types), *rest)
            self._signatures[fields] = known
        return known

    def _sizes(self, value: object) -> Sizes:
        """Shapes, if that is what the value holds (its numbers are checked later); empty if not."""
        if type(value) is not list:
            return ()
        try:
            widest = max(map(len, value), default=0)
            self._numbers += widest * len(value)
            if widest > _MAX_DIMENSIONS:
                return ()
            if self._numbers > MAX_NUMBERS:
                raise UnreadableDump(f"its calls' sizes are more than {MAX_NUMBERS} numbers; record fewer entries")
            return tuple(map(tuple, value))
        except TypeError:
            return ()

    def _site(self, frames: object, *, whole: bool) -> str:
        """``"file:line function"`` of the user's frame. ``whole``: the first frame is the user's."""
        if not isinstance(frames, list) or not frames:
            return ""
        # Unpickled frames of one call site are one list, kept alive by the file's entries.
        site = self._sites.get(id(frames))
        if site is None:
            site = self._sites[id(frames)] = _user_site(frames, whole)
        return site


def _user_site(frames: list[Any], whole: bool) -> str:
    named = [frame for frame in frames if isinstance(frame, dict) and isinstance(frame.get("filename"), str)]
    if not named:
        return ""
    users = named if whole else [f for f in named if not any(part in f["filename"] for part in _OTHERS_CODE)]
    frame = (users or named)[0]
    return f"{frame['filename']}:{frame.get('line', 0)} {frame.get('name', '')}".rstrip()


def _batches(found: list[tuple[Entry, names.Name]]) -> list[Entry]:
    """Resolve coalesced batches: the members share a number, stay "scheduled" for ever, and an end entry follows.

    The members take the end's state; the end itself goes, or, where the batch is one list operation that the backend
    did piece by piece, the pieces go and the end becomes that operation.
    """
    members: dict[tuple[str, Stream, int], list[int]] = {}
    out: list[Entry | None] = []
    for index, (entry, name) in enumerate(found):
        out.append(entry)
        place = (entry.group, entry.stream, entry.sequence_id)
        ends = name.raw == names.COALESCED or name.raw in names.UNEVEN_LISTS
        if not ends:
            members.setdefault(place, []).append(index)
            continue
        batch = members.pop(place, [])
        if not batch:
            continue
        operation = names.UNEVEN_LISTS.get(name.raw)
        if operation is None:
            out[index] = None
            for at in batch:
                out[at] = found[at][0]._replace(state=entry.state, duration=entry.duration, batch=entry.record)
            continue
        pieces = [found[at][0].signature for at in batch]
        for at in batch:
            out[at] = None
        out[index] = entry._replace(signature=_list_operation(operation, entry.signature, pieces))
    return [entry for entry in out if entry is not None]


def _list_operation(operation: str, end: Signature, pieces: list[Signature]) -> Signature:
    """all_gather: the outputs are what was broadcast. reduce_scatter: the inputs are what was reduced."""
    if operation == "all_gather":
        sizes = tuple(shape for piece in pieces for shape in piece.output_sizes)
        dtypes = tuple(name for piece in pieces for name in piece.output_dtypes)
        return Signature(operation, end.input_sizes, sizes, end.input_dtypes or dtypes, end.output_dtypes or dtypes)
    sizes = tuple(shape for piece in pieces for shape in piece.input_sizes)
    dtypes = tuple(name for piece in pieces for name in piece.input_dtypes)
    return Signature(operation, sizes, end.output_sizes, end.input_dtypes or dtypes, end.output_dtypes or dtypes)
