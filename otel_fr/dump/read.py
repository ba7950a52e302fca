"""Read flight-recorder files: otel-fr's, PyTorch's (pickle or JSON), torchcomms' (JSON or pickle); gzip'd too.

Nothing in a file is trusted: no code of it runs (`safe`), and every field is checked when it is used.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from otel_fr.dump import names
from otel_fr.dump.entries import EntryReader, Signatures, integer
from otel_fr.dump.model import Dump, Entry, GroupInfo, Problem, Source
from otel_fr.dump.safe import DEFAULT_LIMITS, Limits, UnreadableDump, parse, read_bytes
from otel_fr.identity import decode_ranks
from otel_fr.match.model import State

MAX_FILES = 100_000
"""Files of a folder that are looked at."""

MAX_RANKS = 1_000_000
"""Members of all process groups of one file together that are believed."""

PARALLEL_BYTES = 32 * 1024 * 1024
"""From this many bytes on it pays to start processes for the reading."""

_PIECE = 8
"""Files that one process reads at a time."""

_ENDINGS = (".gz", ".json", ".pickle", ".pkl", ".bin")
_DIGITS = re.compile(r"(\d{1,9})$")
_RANK_NUMBER = re.compile(r"[0-9]{1,9}")


def load(path: Path | str, limits: Limits = DEFAULT_LIMITS) -> Dump:
    """Read one file.

    Raises:
        UnreadableDump: it cannot be used; the text says what is wrong and what to do.
    """
    return _load(Path(path), limits, {})


def _load(path: Path, limits: Limits, signatures: Signatures) -> Dump:
    data = parse(read_bytes(path, limits), limits)
    try:
        return _dump(path, data, signatures)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise UnreadableDump(f"not a flight-recorder file, or a damaged one ({error}); copy it again") from error


def load_folder(
    path: Path | str, prefix: str | None = None, limits: Limits = DEFAULT_LIMITS, workers: int = 1
) -> tuple[list[Dump], list[Problem]]:
    """Read every file of a folder and of the folders in it, or one file.

    Args:
        prefix: only files whose name begins with it.
        workers: processes that share the reading of a large folder; with more than 1, the calling program must be
            one that `multiprocessing` can start again ("spawn").

    Returns:
        what could be read, by rank, and a problem for each file that could not.
    """
    files, truncated = _files(Path(path), prefix)
    problems: list[Problem] = []
    if truncated:
        text = f"more than {MAX_FILES} files; the rest was not read: name a smaller folder"
        problems.append(Problem(str(path), text))
    if workers > 1 and sum(_size(file) for file in files) > PARALLEL_BYTES:
        read = _read_parallel(files, limits, workers)
    else:
        read = _read_all(files, limits)
    dumps = [item for item in read if isinstance(item, Dump)]
    problems.extend(item for item in read if isinstance(item, Problem))
    dumps.sort(key=lambda dump: (dump.rank, dump.path))
    return dumps, problems


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_all(files: list[Path], limits: Limits) -> list[Dump | Problem]:
    read: list[Dump | Problem] = []
    signatures: Signatures = {}
    for file in files:
        try:
            read.append(_load(file, limits, signatures))
        except UnreadableDump as error:
            read.append(Problem(str(file), str(error)))
    return read


def _read_parallel(files: list[Path], limits: Limits, workers: int) -> list[Dump | Problem]:
    pieces = [files[start : start + _PIECE] for start in range(0, len(files), _PIECE)]
    context = multiprocessing.get_context("spawn")
    try:
        # The values all live until they are sent back: looking for garbage among them only takes time.
        with ProcessPoolExecutor(min(workers, len(pieces)), mp_context=context, initializer=gc.disable) as pool:
            return [item for read in pool.map(_read_all, pieces, [limits] * len(pieces)) for item in read]
    except (BrokenProcessPool, OSError):  # no processes to be had here, or one was killed
        return _read_all(files, limits)


def _files(path: Path, prefix: str | None) -> tuple[list[Path], bool]:
    if not path.is_dir():
        return [path], False
    found: list[Path] = []
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        # Hidden files are other programs' bookkeeping, or a dump that is being written.
        wanted = sorted(name for name in files if name.startswith(prefix or "") and not name.startswith("."))
        found.extend(Path(folder, name) for name in wanted)
        if len(found) > MAX_FILES:
            return found[:MAX_FILES], True
    return found, False


def rank_of_name(name: str) -> int | None:
    """The rank a file's name ends with (``rank_1.json``, ``_dump_9``, ``trace_0.gz``), or None."""
    stem = name
    while stem.endswith(_ENDINGS):
        stem = stem.rpartition(".")[0]
    digits = _DIGITS.search(stem)
    return int(digits.group(1)) if digits else None


def _dump(path: Path, data: dict[str, Any], signatures: Signatures) -> Dump:
    facts = data.get("otel_fr")
    facts = facts if isinstance(facts, dict) and isinstance(facts.get("groups"), list) else {}
    if not facts and not ("pg_config" in data and ("version" in data or "entries" in data)):
        raise UnreadableDump("not a flight-recorder file: it has no pg_config and entries")
    rank = integer(facts.get("rank")) if facts else rank_of_name(path.name)
    if rank is None or rank < 0:
        raise UnreadableDump("its rank is not known: a file's name must end with the rank (trace_0); rename it")
    raw = data.get("entries", [])  # absent: torchcomms had none, or PyTorch was told to leave them out
    if not isinstance(raw, list):
        raise UnreadableDump(f"entries is a {type(raw).__name__} instead of a list: the file is damaged")
    groups = _own_groups(facts) if facts else _groups(data.get("pg_config"))
    source: Source = "otel-fr" if facts else _source(groups, raw)
    reader = EntryReader(source, _issue_clock(facts), signatures)
    entries = reader.read(raw)
    dump = Dump(rank, source, str(path), str(data.get("version", ""))[:32], groups, entries, facts=facts)
    dump.notes.extend(reader.notes)
    if facts:
        dump.partial = facts.get("complete") is not True
        return dump
    for key, (name, description) in reader.groups.items():
        dump.groups.setdefault(key, GroupInfo(key, "", name, description, ()))
    dump.partial = bool(entries) and entries[0].record > 0
    if source == "torchcomms":
        _number_by_order(dump)
    _progress(dump, data.get("pg_status"), reader.local_ids, source)
    ended = any(entry.state is State.COMPLETED for entry in entries)
    dump.has_completions = ended or any(group.completed is not None for group in dump.groups.values())
    return dump


def _issue_clock(facts: Mapping[str, Any]) -> int | None:
    """When our file was written, on the clock of ``otel_fr_issued_ns``."""
    written, offset = integer(facts.get("written_at")), integer(facts.get("wall_offset_ns"))
    return None if written is None or offset is None else written - offset


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _own_groups(facts: Mapping[str, Any]) -> dict[str, GroupInfo]:
    found: dict[str, GroupInfo] = {}
    room = MAX_RANKS
    for item in facts["groups"]:
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            continue
        try:
            ranks = tuple(decode_ranks(_text(item.get("ranks")), room))
        except ValueError:
            ranks = ()
        room -= len(ranks)
        found[item["id"]] = GroupInfo(
            item["id"],
            item["id"],
            _text(item.get("name")),
            _text(item.get("desc")),
            ranks,
            integer(item.get("enqueued")),
            integer(item.get("completed")),
            integer(item.get("first_recorded")),
        )
    return found


def group_key(name: str, description: str) -> str:
    """Names a group within a file of others: c10d's name and description together."""
    return f"{name}\x1f{description}"


def _groups(config: object) -> dict[str, GroupInfo]:
    """PyTorch's ``pg_config``. gloo's ``{"": ...}`` says nothing and is left out."""
    found: dict[str, GroupInfo] = {}
    room = MAX_RANKS
    for key, item in config.items() if isinstance(config, dict) else ():
        if not isinstance(item, dict) or not str(key):
            continue
        name, description = _text(item.get("name")) or str(key), _text(item.get("desc"))
        ranks = tuple(map(int, _RANK_NUMBER.findall(_text(item.get("ranks")))[:room]))
        room -= len(ranks)
        group = GroupInfo(group_key(name, description), "", name, description, ranks)
        found[group.key] = group
    return found


def _source(groups: Mapping[str, GroupInfo], raw: list[Any]) -> Source:
    """torchcomms describes a group by its backend, the same that stands before the operations' names."""
    backends = {names.parse(_text(e.get("profiling_name"))).backend for e in raw[:64] if isinstance(e, dict)}
    described = {group.description for group in groups.values()}
    return "torchcomms" if described and described == backends else "pytorch"


def _number_by_order(dump: Dump) -> None:
    """torchcomms counts calls over all groups of a rank; number them within each group, from 0.

    A receive or send is recorded without its peer, so it can neither be numbered nor matched.
    """
    counts: dict[str, int] = {}
    kept: list[Entry] = []
    for entry in dump.entries:
        if entry.stream == "p2p":
            kept.append(entry)
            continue
        number = counts.get(entry.group, -1) + 1
        counts[entry.group] = number
        kept.append(entry._replace(sequence_id=number))
    if dump.partial and counts:
        dump.notes.append("older calls were overwritten, and torchcomms does not number calls within a group")
    dump.entries = kept


def _progress(dump: Dump, status: object, local_ids: Mapping[int, str], source: Source) -> None:
    """Set how far each group came: from the entries, and from ``pg_status`` where that can be believed."""
    reported = _reported(dump.groups, status, local_ids) if source == "pytorch" else {}
    calls: dict[str, list[Entry]] = {key: [] for key in dump.groups}
    p2p: set[str] = set()
    for entry in dump.entries:
        if entry.stream == "collective":
            calls.setdefault(entry.group, []).append(entry)
        else:
            p2p.add(entry.group)
    for key, group in dump.groups.items():
        numbers = [entry.sequence_id for entry in calls[key]]
        done = [entry.sequence_id for entry in calls[key] if entry.state is State.COMPLETED]
        enqueued, completed = reported.get(key, (None, None))
        if key in p2p:
            enqueued = completed = None  # its numbers may be those of a send or receive
        group.enqueued = max([*numbers, *([] if enqueued is None else [enqueued])], default=None)
        group.completed = max([*done, *([] if completed is None else [completed])], default=None)
        if numbers:
            group.first_recorded = min(numbers) if min(numbers) > 1 else None
        elif enqueued:
            group.first_recorded = enqueued + 1
        elif not dump.partial:
            group.enqueued = group.completed = 0 if source == "pytorch" else -1


def _reported(
    groups: Mapping[str, GroupInfo], status: object, local_ids: Mapping[int, str]
) -> dict[str, tuple[int, int]]:
    """``pg_status`` by group. Its keys are numbers of this rank, which the entries' ``pg_id`` explain."""
    numbers: dict[int, tuple[int, int]] = {}
    for key, item in status.items() if isinstance(status, dict) else ():
        if isinstance(item, dict) and isinstance(key, (int, str)) and integer(key) is not None:
            enqueued = integer(item.get("last_enqueued_collective"))
            completed = integer(item.get("last_completed_collective"))
            if enqueued is not None and completed is not None:
                numbers[int(key)] = (max(enqueued, 0), max(completed, 0))
    places = dict(local_ids)
    # PyTorch gives out both names and local numbers in the order of creation, so that as many of both pair up in
    # that order; believed only if it agrees with every pair that the entries show.
    by_name = sorted((int(group.name), key) for key, group in groups.items() if group.name.isdigit())
    if len(by_name) == len(groups) == len(numbers):
        in_order = {number: key for number, (_, key) in zip(sorted(numbers), by_name, strict=True)}
        if all(in_order.get(number) == key for number, key in local_ids.items()):
            places = in_order
    return {places[number]: values for number, values in numbers.items() if number in places}
