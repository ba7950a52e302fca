"""Answers of NCCL's RAS (reliability, availability and serviceability): the state of each communicator, by its ranks.

RAS is part of NCCL since 2.24. It consists of threads in all processes of a job, which know each other. Since 2.28 it
can return its status as one JSON object. ``ncclras -f json`` prints the object, and a rank monitor saves it
(`otel_fr.monitor.nccl.ras_client`). Source of the format: jsonWriteHeader and the functions after it in
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
"""Beginning of the names of files with an answer. The name of the host that asked follows: ``HOST.json``, and
``HOST.txt`` with NCCL's diagnostics."""
MAX_BYTES: Final = 32 << 20
"""Bytes of an answer. A rank in a communicator takes some 700 bytes, so an answer may have 40,000 of them."""
IN_PROGRESS: Final = 7
"""``ncclInProgress``, which is not an error. 0 is ``ncclSuccess``."""
_SIGNS: Final = (b'"nccl_version"', b'"communicators_count"')
_SIGN_BYTES: Final = 4096
_MISSING_COMMA: Final = re.compile(rb'("nvml_dev":\s*-?\d+)(?=\s*"status")')
"""The place of a comma that NCCL 2.28 omits for a rank that did not answer. 2.29 writes it (jsonWriteMissingRank)."""
_DIAGNOSTIC: Final = re.compile(r" NCCL DIAG \[INFO\]\s*(.*)")
"""A line of NCCL's diagnostics about a possible problem: ``HOST:PID NCCL DIAG [INFO] TEXT``. With ``[OK]``, there is no
problem (src/ras/diagnostics.cc and its checks)."""


class RasRank(NamedTuple):
    """A process's part in a communicator.

    Attributes:
        rank: rank in the communicator.
        host: the host as RAS names it, which is an IP address.
        pid: process id. 0: not known.
        is_missing: the process did not answer.
        is_dead: RAS has given the process up.
        error: NCCL's error code. 0: none.
        is_aborted: the process has aborted the communicator.
        counts: operation -> number of started calls. Captured calls are usually not counted.
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
    """One communicator: its hash, the number of its ranks, and the ranks that RAS knows."""

    id: str
    size: int
    ranks: tuple[RasRank, ...]


class RasAnswer(NamedTuple):
    """One answer of RAS.

    Attributes:
        time: when RAS answered, in local time of the answering process.
        timeouts: number of timeouts of RAS's threads.
    """

    path: str
    version: str
    time: str
    timeouts: int
    communicators: tuple[RasCommunicator, ...]

    @property
    def pids(self) -> frozenset[int]:
        """The known ids of all processes in the answer."""
        return frozenset(rank.pid for one in self.communicators for rank in one.ranks if rank.pid)


def is_one(path: Path) -> bool:
    """Return whether a file begins like an answer of RAS."""
    return path.suffix == ".json" and is_answer(head_of(path))


def is_answer(data: bytes) -> bool:
    """Return whether the bytes begin like an answer of RAS."""
    head = data[:_SIGN_BYTES]
    return all(sign in head for sign in _SIGNS)


def names_process(data: bytes, pid: int) -> bool:
    """Return whether a process with this id is in an answer. Parsing the answer would take three times its memory."""
    return re.search(rb'"pid":\s*%d\b' % pid, data) is not None


def read_answer(path: Path) -> RasAnswer:
    """Read a file with an answer.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file does not contain an answer. The text says why.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
    return parse_answer(data, str(path))


def parse_answer(data: bytes, path: str = "") -> RasAnswer:
    """Parse the JSON of an answer.

    Raises:
        ValueError: the data is not an answer. The text says why.
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
    """Convert each rank as soon as it is read: as dicts, all ranks would take three times the answer's size."""
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
    """The part of an answer that a rank report contains: the oddities, bounded.

    Args:
        age_s: seconds since RAS was asked.
        diagnostics: the result of `odd_diagnostics`.
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
    """The lines of NCCL's diagnostics about possible problems, without host and process."""
    return [
        found[1].strip() for found in map(_DIAGNOSTIC.search, data.decode("utf-8", "replace").splitlines()) if found
    ]


def odd_of(one: RasCommunicator) -> ReportedCommunicator:
    """The oddities of a communicator: none if the result has no facts."""
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
    """Yield one fact about as many ranks as there is room for. Yield nothing if there are no ranks."""
    named = sorted(set(ranks))
    if not named:
        return
    told = encode_ranks(named)
    count = len(named)
    while len(told) > ras.MAX_RANKS_TEXT:
        count = count * 3 // 4
        told = encode_ranks(named[:count])
    yield ReportedFact(kind, told, len(named) - count, number, operation[: ras.MAX_LABEL])
