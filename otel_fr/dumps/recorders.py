"""One entry reader per file format: PyTorch's, which torchcomms writes, too, and otel-fr's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from otel_fr.dumps import fields, operation_names
from otel_fr.dumps.columns import COMPLETED, NONE, P2P, STATES, Label, codes, integers
from otel_fr.dumps.entry_reader import (
    MAX_NUMBERS,
    EntryReader,
    Kind,
    RawColumns,
    exact_column,
    integer_column,
    seconds_column,
    times_column,
)
from otel_fr.dumps.safe_parse import UnreadableDump
from otel_fr.identity import STREAMS, decode_ranks, encode_ranks
from otel_fr.match.model import CallState
from otel_fr.operations import ALL_TO_ALL, MESSAGES, NewGroup
from otel_fr.ring import POSTED

_STATES = {state.value: state for state in CallState}
_UNKNOWN_SPLITS: tuple[int, ...] = ()
_BATCH_END_CODES = {raw: code for code, raw in enumerate(operation_names.BATCH_ENDS, 1)}


def group_key(name: str, description: str) -> str:
    """The key of a group in a file of PyTorch or torchcomms: c10d's name with the description."""
    return f"{name}\x1f{description}"


def numbered_groups(config: object, most: int) -> dict[int, tuple[int, ...]]:
    """PyTorch's ``pg_config`` of version 1.4: the rank's local number of a group -> its members.

    Once the groups have ``most`` members in total, further groups are left out.
    """
    found: dict[int, tuple[int, ...]] = {}
    for key, ranks in config.items() if isinstance(config, dict) else ():
        number = fields.integer(key)
        if number is None or not isinstance(ranks, list) or not fields.bounded_numbers(ranks) or len(ranks) > most:
            continue
        most -= len(ranks)
        if known := fields.members(ranks):
            found[number] = known
    return found


def _state(item: Mapping[str, Any], backend: str) -> CallState:
    # gloo, and torchcomms on a CPU, never leave "scheduled": only "retired" shows that a call completed.
    hooked = backend == operation_names.HOOK
    if item.get("state") == "completed" or (item.get("retired") is True and not hooked):
        return CallState.COMPLETED
    return CallState.UNKNOWN if hooked else CallState.IN_FLIGHT


class PyTorchReader(EntryReader):
    """Reads PyTorch's entries, of any version of its schema, and torchcomms'.

    Attributes:
        groups: `Entry.group` -> (name, description).
        local_ids: ``pg_id`` -> `Entry.group`.
        members: `Entry.group` -> members, for groups that only their members identify (version 1.4).
    """

    _SIZES = ("input_sizes", "output_sizes")
    _LISTS = ("input_dtypes", "output_dtypes")
    _SCALARS = ("pg_id", "profiling_name", "state", "retired", "is_p2p", "timeout_ms", "thread_name")
    _OWN = (
        "collective_seq_id", "p2p_seq_id", "seq_id", "record_id", "time_created_ns", "time_discovered_started_ns",
        "time_discovered_completed_ns", "duration_ms",
    )  # fmt: skip
    _WHOLE_FRAMES = False

    def __init__(self, rank: int = 0, members: Mapping[int, tuple[int, ...]] | None = None) -> None:
        """Make a reader for the file of one rank. ``members``: `numbered_groups` of the file's ``pg_config``."""
        super().__init__()
        self.members: dict[str, tuple[int, ...]] = {}
        self._numbered = members or {}
        self.groups: dict[str, tuple[str, str]] = {}
        self.local_ids: dict[int, str] = {}
        self._rank = rank
        self._names: dict[str, operation_names.Name] = {}
        self._nameless = False

    def _group(self, item: Mapping[str, Any]) -> str:
        local = item.get("pg_id")
        if "process_group" in item:
            name, description = item["process_group"]
            if not isinstance(name, str) or not isinstance(description, str):
                raise ValueError
        elif local == 0:
            name, description = "0", "default_pg"
        elif isinstance(local, int) and list(self._numbered.values()).count(self._numbered.get(local, ())) == 1:
            name, description = encode_ranks(self._numbered[local]), "of these ranks"
        else:
            # Up to version 1.4, only the rank's local number of the group is recorded. It differs between ranks.
            name, description = str(fields.exact(local)), f"of rank {self._rank}"
            if not self._nameless:
                self._nameless = True
                self.notes.append(
                    "this version of the format does not name process groups: only the default group and groups"
                    " whose members are recorded were compared"
                )
        key = group_key(name, description)
        if key not in self.groups:
            self.groups[key] = (name, description)
        if isinstance(local, int):
            self.local_ids.setdefault(local, key)
            if "process_group" not in item and self._numbered.get(local):
                self.members[key] = self._numbered[local]
        return key

    def _kind(self, item: Mapping[str, Any]) -> Kind:
        group = self._group(item)
        text = item["profiling_name"]
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = operation_names.parse(text)
        operation = name.operation
        p2p = item.get("is_p2p") is True or operation in MESSAGES
        peer = name.destination if operation == "send" else name.source
        ins, outs = self._sizes(item["input_sizes"]), self._sizes(item["output_sizes"])
        operation, ins, outs = operation_names.coalesced(name, ins, outs)
        splits: tuple[int, ...] | None = None
        if operation in ALL_TO_ALL:
            # NCCL records both in the same way, and no recorder records the splits.
            operation = "all_to_all_single" if len(ins) == len(outs) == 1 else operation
            splits = _UNKNOWN_SPLITS if operation == "all_to_all_single" else None
        signature = self._signature(
            operation,
            ins,
            outs,
            fields.dtypes(item.get("input_dtypes")),
            fields.dtypes(item.get("output_dtypes")),
            None,
            None,
            peer,
            0 if p2p and operation != operation_names.COALESCED else None,
            splits,
            splits,
            name.any_source or (p2p and peer is None),
        )
        timeout = fields.seconds(item.get("timeout_ms"), 1e3) or None
        return Kind(
            group,
            "p2p" if p2p else "collective",
            signature,
            _state(item, name.backend),
            Label(timeout, None, name.backend, fields.short_text(item.get("thread_name"))),
            _BATCH_END_CODES.get(name.raw, 0),
        )

    def _check(self, item: Mapping[str, Any], kind: Kind) -> None:
        own = "p2p_seq_id" if kind.stream == "p2p" else "collective_seq_id"
        if "collective_seq_id" not in item and item.get(own) is None and item.get("seq_id") is None:
            raise KeyError("collective_seq_id")

    def _columns(self, table: RawColumns, kinds: list[Kind], which: Any) -> dict[str, Any]:
        number = integer_column(table.required("collective_seq_id"))
        p2p = codes([STREAMS.index(kind.stream) for kind in kinds])[which] == P2P
        if p2p.any():
            number = np.where(p2p, integer_column(table.required("p2p_seq_id")), number)
        if "seq_id" in table.columns:  # up to version 2.0
            number = np.where(number == NONE, integer_column(table.optional("seq_id")), number)
        number[number == NONE] = 0
        record = integer_column(table.required("record_id"))  # version 1.1 has none
        unnumbered = np.flatnonzero(record == NONE)
        record[unnumbered] = unnumbered
        created, started, ended = (
            times_column(table.optional(name))
            for name in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
        )
        duration = seconds_column(table.optional("duration_ms"), 1e3)
        done = codes([STATES.index(kind.state) for kind in kinds])[which] == COMPLETED
        known = done & np.isnan(duration) & (created != NONE) & (ended != NONE)
        if known.any():
            duration[known] = np.maximum(ended[known] - created[known], 0) / 1e9
        return {
            "sequence_id": number,
            "record": record,
            "duration": duration,
            "created": created,
            "started": started,
            "ended": ended,
        }


class OtelFrReader(EntryReader):
    """Reads otel-fr's entries."""

    _SIZES = ("input_sizes", "output_sizes", "otel_fr_input_sizes", "otel_fr_output_sizes")
    _LISTS = ("input_dtypes", "output_dtypes", "otel_fr_input_splits", "otel_fr_output_splits")
    _SCALARS = (
        "profiling_name", "timeout_ms", "thread_name", "otel_fr_op", "otel_fr_kind", "otel_fr_group", "otel_fr_state",
        "otel_fr_error", "otel_fr_reduce_op", "otel_fr_root", "otel_fr_peer", "otel_fr_tag", "otel_fr_any_source",
        "otel_fr_truncated", "otel_fr_new_name", "otel_fr_new_desc", "otel_fr_new_ranks", "otel_fr_awaits_all",
    )  # fmt: skip
    _OWN = (
        "otel_fr_seq", "record_id", "otel_fr_issued_ns", "otel_fr_ended_ns", "otel_fr_waited_ns", "otel_fr_pair_index",
        "otel_fr_gap_s", "duration_ms", "time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns",
    )  # fmt: skip
    _WHOLE_FRAMES = True

    def __init__(self, written_ns: int | None, wall_offset_ns: int | None) -> None:
        """Make a reader for one file.

        Args:
            written_ns: when the file was written, on the clock of ``otel_fr_issued_ns``. None: not known.
            wall_offset_ns: wall clock minus this clock. None: not known.
        """
        super().__init__()
        self._written_ns = written_ns
        self._wall_offset_ns = wall_offset_ns
        self._members: dict[str, tuple[int, ...]] = {}

    def _kind(self, item: Mapping[str, Any]) -> Kind:
        stream = item["otel_fr_kind"]
        if stream not in STREAMS or not isinstance(item["otel_fr_op"], str):
            raise ValueError
        truncated = item.get("otel_fr_truncated") is True
        ins = () if truncated else item.get("otel_fr_input_sizes", item["input_sizes"])
        outs = () if truncated else item.get("otel_fr_output_sizes", item["output_sizes"])
        signature = self._signature(
            item["otel_fr_op"],
            self._sizes(ins),
            self._sizes(outs),
            () if truncated else fields.dtypes(item["input_dtypes"]),
            () if truncated else fields.dtypes(item["output_dtypes"]),
            fields.text(item.get("otel_fr_reduce_op")),
            fields.integer(item.get("otel_fr_root")),
            fields.integer(item.get("otel_fr_peer")),
            fields.integer(item.get("otel_fr_tag")),
            _UNKNOWN_SPLITS if truncated else fields.splits(item.get("otel_fr_input_splits")),
            _UNKNOWN_SPLITS if truncated else fields.splits(item.get("otel_fr_output_splits")),
            item.get("otel_fr_any_source") is True,
            self._new_group(item),
        )
        written = fields.short_text(item.get("profiling_name"))
        label = Label(
            fields.seconds(item.get("timeout_ms"), 1e3) or None,
            fields.text(item.get("otel_fr_error")),
            written.partition(":")[0] if ":" in written else "",
            fields.short_text(item.get("thread_name")),
        )
        return Kind(str(item["otel_fr_group"]), stream, signature, _STATES[item["otel_fr_state"]], label)

    def _new_group(self, item: Mapping[str, Any]) -> NewGroup | None:
        """The process group that the call creates."""
        name = fields.text(item.get("otel_fr_new_name"))
        if name is None:
            return None
        description = fields.short_text(item.get("otel_fr_new_desc"))
        ranks = self._ranks(fields.text(item.get("otel_fr_new_ranks")) or "")
        return NewGroup(fields.short_text(name), description, ranks, item.get("otel_fr_awaits_all") is True)

    def _ranks(self, text: str) -> tuple[int, ...]:
        """Decode a list of ranks. Raises ValueError if it cannot be decoded. The lists of a file count
        towards the limit on its sizes."""
        known = self._members.get(text)
        if known is None:
            known = self._members[text] = tuple(decode_ranks(text))
            self._numbers += len(known)
            if self._numbers > MAX_NUMBERS:
                raise UnreadableDump(f"its lists of ranks are more than {MAX_NUMBERS} numbers; record fewer entries")
        return known

    def _check(self, item: Mapping[str, Any], kind: Kind) -> None:
        ended = item["otel_fr_ended_ns"]
        for value in (item["otel_fr_issued_ns"], 0 if ended is None else ended, item["otel_fr_seq"], item["record_id"]):
            fields.exact(value)

    def _columns(self, table: RawColumns, kinds: list[Kind], which: Any) -> dict[str, Any]:
        issued = exact_column(table.required("otel_fr_issued_ns"))
        recorded = table.required("otel_fr_ended_ns")
        open_ = np.array([value is None for value in recorded], np.bool_)
        ended = exact_column([0 if value is None else value for value in recorded])
        waited = times_column(table.optional("otel_fr_waited_ns"))
        since = np.where(waited == NONE, issued, waited)
        since = np.where(since == POSTED, issued if self._written_ns is None else self._written_ns, since)
        duration = (ended - issued) / 1e9
        duration[open_ | np.isnan(seconds_column(table.optional("duration_ms"), 1e3))] = np.nan
        wall = times_column(table.optional("time_discovered_completed_ns"))
        offset = self._wall_offset_ns
        if offset is not None:
            missing = (wall == NONE) & ~open_
            wall[missing] = integer_column((ended[missing] + offset).tolist())
        return {
            "sequence_id": exact_column(table.required("otel_fr_seq")),
            "record": exact_column(table.required("record_id")),
            "pair_index": integers(integer_column(table.optional("otel_fr_pair_index")).tolist()),
            "age": None if self._written_ns is None else np.maximum(self._written_ns - since, 0) / 1e9,
            "duration": duration,
            "gap": seconds_column(table.optional("otel_fr_gap_s"), 1.0),
            "created": times_column(table.optional("time_created_ns")),
            "started": times_column(table.optional("time_discovered_started_ns")),
            "ended": wall,
        }
