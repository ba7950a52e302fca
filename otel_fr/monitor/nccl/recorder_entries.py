"""The parts of PyTorch's recorder entries that a monitor needs: which call it is, and how far the device is with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from otel_fr.dumps import fields, operation_names
from otel_fr.dumps.safe_parse import UnreadableDump, parse
from otel_fr.operations import MESSAGES

MAX_BYTES: Final = 32 << 20
"""Most bytes of one answer: 50,000 entries. PyTorch keeps 2,000 unless ``TORCH_FR_BUFFER_SIZE`` is set."""
_MAX_VALUES: Final = 2_000_000
_LONGEST_MS: Final = 2**32 - 1
"""Largest timeout, as in the ring."""


Key = tuple[str, bool, int]
"""Identifies a call: c10d's name of the group; True for a send or receive; the sequence number."""


class Entry(NamedTuple):
    """One entry. Times are wall ns; 0: unknown.

    Attributes:
        group: c10d's name of the process group.
        number: sequence number among the group's collectives, or among its sends and receives.
        operation: name in `torch.distributed`.
        ends_batch: True if the entry stands for all entries with its number.
        began, ended: when a thread of PyTorch saw that the device had begun, or completed, the call.
        duration_s: duration by the device's clock; None: unknown.
        is_retired: True if PyTorch no longer waits for the call.
        timeout_ms: how long PyTorch waits at most; 0: unknown.
        name: the recorder's name, parsed.
        raw: the complete entry, unchecked.
    """

    group: str
    is_p2p: bool
    number: int
    operation: str
    ends_batch: bool
    record: int
    created: int
    began: int
    ended: int
    duration_s: float | None
    is_retired: bool
    timeout_ms: int
    name: operation_names.Name
    raw: Mapping[str, Any]

    @property
    def key(self) -> Key:
        """Identifies the call of the entry."""
        return self.group, self.is_p2p, self.number

    def stream(self, is_serial: bool) -> object:
        """Return the call's stream. The device executes the calls of one stream in their order.

        Source of the rule: ProcessGroupNCCL.cpp has a stream for each pair of ranks that send and receive outside of
        batches, and one for all other calls of a group. A group that ``is_serial`` (`GroupDef`) has only one stream.
        """
        ends = self.name.source, self.name.destination
        return self.group, None if is_serial or ends == (None, None) else frozenset(ends)


def last_of_calls(entries: Iterable[Entry]) -> dict[Key, Entry]:
    """Return the last entry of each call, by key.

    The end of a batch stands for the entries of the batch. A later equal key belongs to a group created again.

    Args:
        entries: oldest first.
    """
    found: dict[Key, Entry] = {}
    before: dict[str, Entry] = {}
    for entry in entries:
        key = _key_of_end(entry, before.get(entry.group)) if entry.ends_batch else entry.key
        before[entry.group] = entry
        found[key] = entry
    return found


def _key_of_end(end: Entry, before: Entry | None) -> Key:
    """Return the key of the batch that an entry ends. It depends on which count of the group has changed since the
    previous entry.

    The entries of a batch share its number. The end may not say that the batch has sends and receives: NCCL's does not
    (ProcessGroupNCCL::endCoalescing). For collectives in a batch, there may be no entry except the end.

    Args:
        before: the previous entry in the group; None: it is no longer there.
    """
    if end.is_p2p or before is None:
        return end.key
    collectives, messages = (fields.integer(before.raw.get(name)) for name in ("collective_seq_id", "p2p_seq_id"))
    message = fields.integer(end.raw.get("p2p_seq_id")) or 0
    if end.number == collectives and (before.is_p2p or message != messages):
        return end.group, True, message
    return end.key


def parse_answer(body: bytes) -> tuple[list[Entry], str]:
    """Return the entries of an answer, oldest first, without invalid ones, and NCCL's version.

    Raises:
        ValueError: this is no answer of a recorder.
    """
    if not body.startswith(b"{"):
        raise ValueError("it is not a JSON object")
    if body.count(b",") + body.count(b"[") + body.count(b"{") > _MAX_VALUES:  # all but the first follow a comma
        raise ValueError(f"it holds more than {_MAX_VALUES} values")
    try:
        data = parse(body)
    except UnreadableDump as error:
        raise ValueError(str(error)) from error
    raw = data.get("entries", [])  # absent where there are none
    if not isinstance(raw, list):
        raise ValueError("its entries are not a list")
    return [entry for entry in map(_entry, raw) if entry is not None], fields.short_text(data.get("comm_lib_version"))


def _entry(item: Any) -> Entry | None:
    try:
        name = operation_names.parse(item["profiling_name"])
        is_p2p = item.get("is_p2p") is True or name.operation in MESSAGES
        return Entry(
            group=_text(item["process_group"][0]),
            is_p2p=is_p2p,
            number=fields.exact(item["p2p_seq_id" if is_p2p else "collective_seq_id"]),
            operation=name.operation,
            ends_batch=name.raw in operation_names.BATCH_ENDS,
            record=fields.exact(item["record_id"]),
            created=fields.exact(item["time_created_ns"]),
            began=fields.integer(item.get("time_discovered_started_ns")) or 0,
            ended=fields.integer(item.get("time_discovered_completed_ns")) or 0,
            duration_s=fields.seconds(item.get("duration_ms"), 1e3),
            is_retired=item.get("retired") is True,
            timeout_ms=min(max(fields.integer(item.get("timeout_ms")) or 0, 0), _LONGEST_MS),
            name=name,
            raw=item,
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value
