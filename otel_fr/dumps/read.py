"""Reads flight-recorder files of otel-fr, PyTorch and torchcomms: pickle or JSON, also compressed by gzip.

No file is trusted: its code is not run (`safe_parse`), reading it takes bounded time and memory (`processes`), and
every field is checked before use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from otel_fr.dumps import files, nccl_inspector, nccl_ras, operation_names, resolve
from otel_fr.dumps.columns import COLLECTIVE, COMPLETED, IN_FLIGHT
from otel_fr.dumps.fields import integer, members
from otel_fr.dumps.model import Dump, GroupInfo, Problem, Source
from otel_fr.dumps.processes import read_all
from otel_fr.dumps.recorders import OtelFrReader, PyTorchReader, group_key, numbered_groups
from otel_fr.dumps.ring_files import read_ring
from otel_fr.dumps.safe_parse import DEFAULT_LIMITS, SEVERAL, Limits, UnreadableDump, parse, read_bytes
from otel_fr.identity import MAX_RANKS, decode_ranks
from otel_fr.match.model import Signature
from otel_fr.presentation import count_text

MAX_MEMBERS = 10 * MAX_RANKS
"""Most members of all process groups of one file in total. Further members are ignored."""

PARALLEL_BYTES = 8 * 1024 * 1024
"""Above this total size, several processes read the files, because they are then faster than one process."""

Progress = Callable[[int, int], None]
"""Called with (files done, number of files)."""

_RANK_NUMBER = re.compile(r"[0-9]{1,9}")


def load(path: Path | str, limits: Limits = DEFAULT_LIMITS) -> Dump:
    """Read one file, in a process of its own.

    Raises:
        UnreadableDump: the file cannot be used. The text says what is wrong and what to do.
    """
    (_, read), *_ = read_all(partial(_load, limits, ""), limits, [Path(path)], 1)
    if isinstance(read, UnreadableDump):
        raise read
    found: Dump = read
    return found


def _load(limits: Limits, prefix: str, path: Path, bound: Callable[[int], None]) -> Dump:
    """Read one file in this process. ``bound`` sets the process's limits."""
    if files.is_ring(path):
        bound(files.size(path))
        data, clock = read_ring(path)
    else:
        raw = read_bytes(path, limits)
        bound(len(raw))
        data, clock = parse(raw), None
    try:
        dump = _dump(path, data, prefix, clock)
        dump.facts = json.loads(json.dumps(dump.facts))  # expand shared objects here, where the limits hold
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise UnreadableDump(f"not a flight-recorder file, or a damaged one ({error}); copy it again") from error
    dump.modified_ns = files.modified_ns(path)
    return dump


def load_folder(
    path: Path | str,
    prefix: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    workers: int = 1,
    progress: Progress | None = None,
) -> tuple[list[Dump], list[Problem]]:
    """Read every flight-recorder file (and ring file) of a folder and its subfolders, or one file.

    Args:
        prefix: only files whose name begins with it. The rank is then the number after it.
        workers: number of processes that share the reading of a large folder.

    Returns:
        The dumps, sorted by rank, and a problem for each flight-recorder file or folder that could not be read. Files
        of other kinds share one problem. Files of NCCL Inspector and answers of NCCL's RAS have readers of their own.
    """
    found, problems = files.find(Path(path), prefix)
    found = [file for file in found if not nccl_inspector.is_one(file) and not nccl_ras.is_one(file)]
    claimed = bool(prefix) or not Path(path).is_dir()
    candidates = [file for file in found if claimed or files.may_be_one(file, limits)]
    wanted = set(candidates)
    foreign = [file for file in found if file not in wanted]
    dumps: list[Dump] = []
    signatures: dict[Signature, Signature] = {}
    read: dict[Path, Dump | UnreadableDump] = {}
    count = workers if sum(map(files.size, candidates)) > PARALLEL_BYTES else 1
    for file, item in read_all(partial(_load, limits, prefix or ""), limits, candidates, count):
        read[file] = item
        if progress is not None:
            progress(len(foreign) + len(read), len(found))
    for file in candidates:
        item = read[file]
        if isinstance(item, Dump):
            # Share equal signatures as one object, since most ranks have the same ones.
            same = [signatures.setdefault(one, one) for one in item.entries.signatures]
            item.entries = item.entries.replace(signatures=same)
            dumps.append(item)
        elif claimed or files.looks_like_one(file):
            problems.append(Problem(str(file), str(item), is_unread=True))
        else:
            foreign.append(file)
    if foreign:
        problems.append(Problem(str(path), files.skipped(foreign)))
    dumps.sort(key=lambda dump: (dump.rank, dump.path))
    return dumps, problems


def _dump(path: Path, data: dict[str, Any], prefix: str, clock: int | None) -> Dump:
    facts = data.get("otel_fr")
    facts = facts if isinstance(facts, dict) and isinstance(facts.get("groups"), list) else {}
    if not facts and not ("pg_config" in data and ("version" in data or "entries" in data)) and not _is_early(data):
        raise UnreadableDump("not a flight-recorder file: it has no pg_config and entries")
    rank = integer(facts.get("rank")) if facts else files.rank_of(path, prefix)
    if rank is None or rank < 0:
        raise UnreadableDump("its rank is unknown: the file name must end with the rank (trace_0); rename the file")
    raw = data.pop("entries", [])  # absent: torchcomms had none, or PyTorch was configured to omit them
    if not isinstance(raw, list):
        raise UnreadableDump(f"entries is a {type(raw).__name__} instead of a list: the file is damaged")
    version = str(data.get("version", ""))[:32]
    if facts:
        own = OtelFrReader(clock or _issue_clock(facts), integer(facts.get("wall_offset_ns")))
        entries = own.read(raw)
        partial = facts.get("complete") is not True
        return Dump(
            rank=rank,
            source="otel-fr",
            path=str(path),
            version=version,
            groups=_own_groups(facts),
            entries=entries,
            partial=partial,
            unusable=own.unusable,
            facts=facts,
            notes=own.notes,
        )
    groups = _groups(data.get("pg_config"))
    source = _source(groups, raw)
    reader = PyTorchReader(rank, numbered_groups(data.get("pg_config"), MAX_MEMBERS))
    recorded = reader.read(raw)
    if raw and not len(recorded):
        found = f"all {len(raw)} entries" if len(raw) > 1 else "its only entry"
        raise UnreadableDump(f"the required fields are missing in {found}: the file is damaged, copy it again")
    wrapped, chosen = not resolve.is_whole(recorded), resolve.backends_own(recorded)
    entries = resolve.resolve_batches(recorded.take(chosen), reader.ends[chosen], wrapped=wrapped)
    kept = resolve.drop_replaced_groups(entries)
    if len(kept) < len(entries) and len(np.unique(recorded.record)) < len(recorded):  # a recorder never repeats an id
        reader.notes.append(f"it holds {SEVERAL}")
        reader.unusable += len(entries) - len(kept)
    elif len(kept) < len(entries):
        left = count_text(len(entries) - len(kept), "call")
        reader.notes.append(f"left out of process groups that were re-created later: {left}")
    for key, (name, description) in reader.groups.items():
        groups.setdefault(
            key, GroupInfo(key=key, id="", name=name, description=description, ranks=reader.members.get(key, ()))
        )
    partial = len(kept) > 0 and (wrapped or int(kept.record[0]) > int(recorded.record[chosen.argmax()]))
    gapless = resolve.is_gapless(recorded)
    dump = Dump(
        rank=rank,
        source=source,
        path=str(path),
        version=version,
        groups=groups,
        entries=kept,
        partial=partial,
        gapless=gapless,
        recorded=len(raw),
        unusable=reader.unusable,
        all_open=len(recorded) == len(raw) and bool((recorded.state == IN_FLIGHT).all()),
        notes=reader.notes,
    )
    if source == "torchcomms":
        dump.entries = resolve.number_by_order(kept)
        if partial and bool((kept.stream == COLLECTIVE).any()):
            dump.notes.append("older calls were overwritten, and torchcomms does not number calls within a group")
    _progress(dump, data.get("pg_status"), reader.local_ids, source)
    ended = bool((kept.state == COMPLETED).any())
    # A file without pg_config comes from one of PyTorch's first versions, which had a recorder only for NCCL.
    known = any(group.completed is not None for group in groups.values())
    dump.has_completions = ended or known or "pg_config" not in data
    return dump


def _is_early(data: Mapping[str, Any]) -> bool:
    """Return whether a file comes from one of PyTorch's first versions, which wrote no pg_config."""
    raw = data.get("entries")
    return isinstance(raw, list) and any(isinstance(item, dict) and "profiling_name" in item for item in raw[:1])


def _issue_clock(facts: Mapping[str, Any]) -> int | None:
    """When an otel-fr file was written, on the clock of ``otel_fr_issued_ns``. None: not recorded."""
    written, offset = integer(facts.get("written_at")), integer(facts.get("wall_offset_ns"))
    return None if written is None or offset is None else written - offset


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _own_groups(facts: Mapping[str, Any]) -> dict[str, GroupInfo]:
    found: dict[str, GroupInfo] = {}
    room = MAX_MEMBERS
    for item in facts["groups"]:
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            continue
        try:
            ranks = members(decode_ranks(_text(item.get("ranks")), min(room, MAX_RANKS)))
        except ValueError:
            ranks = ()
        room -= len(ranks)
        found[item["id"]] = GroupInfo(
            key=item["id"],
            id=item["id"],
            name=_text(item.get("name")),
            description=_text(item.get("desc")),
            ranks=ranks,
            enqueued=integer(item.get("enqueued")),
            completed=integer(item.get("completed")),
            first_recorded=integer(item.get("first_recorded")),
            destroyed=item.get("gone") is True,
            messages=None if item.get("gone") is True else integer(item.get("p2p")),
        )
    return found


def _groups(config: object) -> dict[str, GroupInfo]:
    """The groups of PyTorch's ``pg_config``, without gloo's ``{"": ...}``, which is empty."""
    found: dict[str, GroupInfo] = {}
    room = MAX_MEMBERS
    for key, item in config.items() if isinstance(config, dict) else ():
        if not isinstance(item, dict) or not str(key):
            continue
        name, description = _text(item.get("name")) or str(key), _text(item.get("desc"))
        ranks = members([*map(int, _RANK_NUMBER.findall(_text(item.get("ranks")))[:room])])
        room -= len(ranks)
        group = GroupInfo(key=group_key(name, description), id="", name=name, description=description, ranks=ranks)
        found[group.key] = group
    return found


def _source(groups: Mapping[str, GroupInfo], raw: list[Any]) -> Source:
    """Recognise torchcomms files: they describe groups by the backend that also begins the names of operations."""
    backends = {operation_names.parse(_text(e.get("profiling_name"))).backend for e in raw[:64] if isinstance(e, dict)}
    described = {group.description for group in groups.values()}
    return "torchcomms" if described and described == backends else "pytorch"


def _progress(dump: Dump, status: object, local_ids: Mapping[int, str], source: Source) -> None:
    """Set each group's progress from the entries, and from ``pg_status`` if that is reliable."""
    reported = _reported(dump.groups, status, local_ids) if source == "pytorch" else {}
    ranges = resolve.sequence_ranges(dump.entries)
    dump.uncounted = frozenset(dump.groups.keys() - reported.keys() - ranges.keys())
    for key, group in dump.groups.items():
        found = ranges.get(key, resolve.NO_RANGE)
        enqueued, completed = reported.get(key, (None, None))
        contradicted = found.unended is not None and completed is not None and found.unended <= completed
        if found.others or contradicted:
            enqueued = completed = None  # pg_status may count sends and receives, or calls that were only enqueued
        group.enqueued = max((n for n in (found.newest, enqueued) if n is not None), default=None)
        group.completed = max((n for n in (found.completed, completed) if n is not None), default=None)
        group.messages = found.messages if source == "pytorch" else None
        if found.messages is None and source == "pytorch" and not dump.partial:
            group.messages = 0
        if found.oldest is not None:
            group.first_recorded = found.oldest if found.oldest > 1 else None
        elif enqueued:
            group.first_recorded = enqueued + 1
        elif not dump.partial:
            group.enqueued = group.completed = 0 if source == "pytorch" else -1


def _reported(
    groups: Mapping[str, GroupInfo], status: object, local_ids: Mapping[int, str]
) -> dict[str, tuple[int, int]]:
    """``pg_status`` by group. Its keys are the rank's local numbers of groups, like the entries' ``pg_id``."""
    numbers: dict[int, tuple[int, int]] = {}
    for key, item in status.items() if isinstance(status, dict) else ():
        if isinstance(item, dict) and isinstance(key, (int, str)) and integer(key) is not None:
            enqueued = integer(item.get("last_enqueued_collective"))
            completed = integer(item.get("last_completed_collective"))
            if enqueued is not None and completed is not None:
                numbers[int(key)] = (max(enqueued, 0), max(completed, 0))
    group_of = dict(local_ids)
    # PyTorch assigns names and local numbers in the order of creation. If there are as many names as numbers, pair them
    # in that order, unless the entries show other pairs.
    by_name = sorted((int(group.name), key) for key, group in groups.items() if group.name.isdigit())
    if len(by_name) == len(groups) == len(numbers):
        in_order = {number: key for number, (_, key) in zip(sorted(numbers), by_name, strict=True)}
        if all(in_order.get(number) == key for number, key in local_ids.items()):
            group_of = in_order
    return {group_of[number]: values for number, values in numbers.items() if number in group_of}
