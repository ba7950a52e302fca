"""Answers of NCCL's RAS (reliability, availability and serviceability): the state of each communicator, by its ranks.

RAS is a part of NCCL since 2.24: threads of all processes of a job, which know of each other. Asked for its status as
JSON, which it has since 2.28, it answers with one object: ``ncclras -f json`` prints it, and a rank monitor saves it
(`otel_fr.monitor.nccl.ras_client`). Source of the format: jsonWriteHeader and what follows it in
src/ras/client_support.cc of NVIDIA/nccl.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_fr.dumps.nccl_fields import head_of, integer, text
from otel_fr.dumps.nccl_inspector import operation_name
from otel_fr.identity import encode_ranks
from otel_fr.rank_report import ras
from otel_fr.rank_report.ras import ReportedCommunicator, ReportedFact, ReportedRas

RAS_FILE: Final = "otel_fr_nccl_ras_"
"""Beginning of the names of the files with an answer, followed by the name of the host that asked: ``HOST.json``, and
``HOST.txt`` with NCCL's diagnostics."""
MAX_BYTES: Final = 32 << 20
"""Of an answer: a rank in a communicator takes some 700 bytes, so 40,000 of them."""
IN_PROGRESS: Final = 7
"""``ncclInProgress``, which is no error; 0 is ``ncclSuccess``."""
_SIGNS: Final = (b'"nccl_version"', b'"communicators_count"')
_SIGN_BYTES: Final = 4096
_MISSING_COMMA: Final = re.compile(rb'("nvml_dev":\s*-?\d+)(?=\s*"status")')
"""NCCL 2.28 writes no comma there of a rank that did not answer; 2.29 does (jsonWriteMissingRank)."""
_DIAGNOSTIC: Final = re.compile(r" NCCL DIAG \[INFO\]\s*(.*)")
"""A line of NCCL's diagnostics that says what may need a look: ``HOST:PID NCCL DIAG [INFO] TEXT``; with ``[OK]``, all
is well (src/ras/diagnostics.cc and its checks)."""


class RasRank(NamedTuple):
    """A process's part in a communicator.

    Attributes:
        rank: in the communicator. pid: 0: not known. host: as RAS has it: an IP address.
        is_missing: it did not answer; ``is_dead``: RAS has given it up.
        error: NCCL's error code, 0: none. is_aborted: the communicator was aborted there.
        counts: operation -> number of calls started; captured ones, as a rule, are not counted.
    """

    rank: int
    host: str
    pid: int
    is_missing: bool = False
    is_dead: bool = False
    error: int = 0
    is_aborted: bool = False
    counts: Mapping[str, int] = {}


class RasCommunicator(NamedTuple):
    """One communicator: its hash, the number of its ranks, and those that RAS knows of."""

    id: str
    size: int
    ranks: tuple[RasRank, ...]


class RasAnswer(NamedTuple):
    """One answer. ``time``: when it was given, in local time of the process that gave it. timeouts: of its threads."""

    path: str
    version: str
    time: str
    timeouts: int
    communicators: tuple[RasCommunicator, ...]

    @property
    def pids(self) -> frozenset[int]:
        """Of all processes in it."""
        return frozenset(rank.pid for one in self.communicators for rank in one.ranks if rank.pid)


def is_one(path: Path) -> bool:
    """True if it begins as an answer does."""
    return path.suffix == ".json" and is_answer(head_of(path))


def is_answer(data: bytes) -> bool:
    """True if the bytes begin as an answer does."""
    head = data[:_SIGN_BYTES]
    return all(sign in head for sign in _SIGNS)


def names_process(data: bytes, pid: int) -> bool:
    """True if a process with that id is in an answer, which is not parsed: that would take three times its memory."""
    return re.search(rb'"pid":\s*%d\b' % pid, data) is not None


def read_answer(path: Path) -> RasAnswer:
    """Read a file.

    Raises:
        OSError: it cannot be read. ValueError: it is no such answer; the text says why.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
    return parse_answer(data, str(path))


def parse_answer(data: bytes, path: str = "") -> RasAnswer:
    """An answer's JSON.

    Raises:
        ValueError: it is no such answer; the text says why.
    """
    try:
        item = _load(data)
        communicators = tuple([_communicator(one) for one in item["communicators"]])
        timeouts = integer(item.get("ras", {}).get("timeouts_count", 0))
        return RasAnswer(path, text(item["nccl_version"]), text(item.get("timestamp", "")), timeouts, communicators)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not an answer of NCCL's RAS, or a truncated one ({type(error).__name__})") from error


def _load(data: bytes) -> Any:
    try:
        return json.loads(data, object_hook=_compact)
    except json.JSONDecodeError:
        repaired, count = _MISSING_COMMA.subn(rb"\1,", data)
        if not count:
            raise
        return json.loads(repaired, object_hook=_compact)


def _compact(item: dict[str, Any]) -> Any:
    """A rank as soon as it has been read: as dicts, all of them would take three times the answer's memory."""
    return _rank(item) if "rank" in item and "host" in item else item


def _communicator(item: Mapping[str, Any]) -> RasCommunicator:
    lost = [
        one._replace(is_missing=True, error=0, is_aborted=False, counts={}) for one in item.get("missing_ranks", ())
    ]
    ranks = [one._replace(is_dead=False) for one in item["ranks"]] + lost
    return RasCommunicator(text(item["hash"]), integer(item["size"]), tuple(sorted(ranks, key=lambda one: one.rank)))


def _rank(item: Mapping[str, Any]) -> RasRank:
    status = item.get("status", {})
    error = integer(status.get("async_error", 0))
    counts = {operation_name(text(name)): integer(count) for name, count in item.get("collective_counts", {}).items()}
    return RasRank(
        integer(item["rank"]),
        text(item["host"]),
        _pid(item),
        is_dead=status.get("considered_dead") is True,
        error=0 if error == IN_PROGRESS else error,
        is_aborted=status.get("abort_flag") is True,
        counts=counts,
    )


def _pid(item: Mapping[str, Any]) -> int:
    pid = item.get("pid", 0)
    return 0 if pid == -1 else integer(pid)  # -1: RAS does not know it


# ---- what is odd


def essence(answer: RasAnswer, age_s: float, diagnostics: Iterable[str] = ()) -> ReportedRas:
    """What a rank report says of an answer: the odd things, bounded.

    Args:
        age_s: since it was asked. diagnostics: as in `odd_diagnostics`.
    """
    odd = [one for one in map(odd_of, answer.communicators) if one.facts]
    shown = ras.MAX_COMMUNICATORS
    return ReportedRas(
        age_s=age_s,
        version=answer.version[: ras.MAX_LABEL],
        communicators=len(answer.communicators),
        timeouts=answer.timeouts,
        odd=tuple(odd[:shown]),
        odd_more=len(odd[shown:]),
        diagnostics="\n".join(diagnostics)[: ras.MAX_DIAGNOSTICS],
    )


def odd_diagnostics(data: bytes) -> list[str]:
    """Of NCCL's diagnostics, what may need a look: each line without its host and process."""
    return [
        found[1].strip() for found in map(_DIAGNOSTIC.search, data.decode("utf-8", "replace").splitlines()) if found
    ]


def odd_of(one: RasCommunicator) -> ReportedCommunicator:
    """What is odd in a communicator; no facts: nothing is."""
    known = [(rank.rank, rank.pid) for rank in one.ranks if rank.pid]
    most = ras.MAX_PROCESSES
    processes = known if len(known) <= most else [*known[: most - 1], known[-1]]
    return ReportedCommunicator(
        id=one.id[: ras.MAX_LABEL], size=one.size, processes=tuple(processes), facts=tuple(_facts(one))[: ras.MAX_FACTS]
    )


def _facts(one: RasCommunicator) -> Iterator[ReportedFact]:
    yield from _fact(ras.SILENT, (rank.rank for rank in one.ranks if rank.is_missing and not rank.is_dead))
    yield from _fact(ras.DEAD, (rank.rank for rank in one.ranks if rank.is_dead))
    errors: dict[int, list[int]] = defaultdict(list)
    counts: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in one.ranks:
        if rank.error:
            errors[rank.error].append(rank.rank)
        for operation, count in rank.counts.items():
            counts[operation][count].append(rank.rank)
    for error, ranks in sorted(errors.items()):
        yield from _fact(ras.ERROR, ranks, error)
    yield from _fact(ras.ABORTED, (rank.rank for rank in one.ranks if rank.is_aborted))
    for operation, by_count in sorted(counts.items()):
        if len(by_count) > 1:
            for count, ranks in sorted(by_count.items()):
                yield from _fact(ras.STARTED, ranks, count, operation)


def _fact(kind: str, ranks: Iterable[int], number: int | None = None, operation: str = "") -> Iterator[ReportedFact]:
    """One, of as many of the ranks as there is room for; none without ranks."""
    named = sorted(set(ranks))
    if not named:
        return
    told = encode_ranks(named)
    count = len(named)
    while len(told) > ras.MAX_RANKS_TEXT:
        count = count * 3 // 4
        told = encode_ranks(named[:count])
    yield ReportedFact(kind, told, len(named) - count, number, operation[: ras.MAX_LABEL])
