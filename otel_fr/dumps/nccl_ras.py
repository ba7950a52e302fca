"""Answers of NCCL's RAS (reliability, availability and serviceability): the state of each communicator, by its ranks.

RAS is a part of NCCL since 2.24: threads of all processes of a job, which know of each other. Asked for its status as
JSON, which it has since 2.28, it answers with one object: ``ncclras -f json`` prints it, and a rank monitor saves it
(`otel_fr.monitor.ras_client`). Source of the format: jsonWriteHeader and what follows it in src/ras/client_support.cc
of NVIDIA/nccl.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_fr.dumps.nccl_fields import head_of, integer, text
from otel_fr.dumps.nccl_inspector import operation_name

MAX_BYTES: Final = 32 << 20
"""Of an answer: a rank in a communicator takes some 700 bytes, so 40,000 of them."""
IN_PROGRESS: Final = 7
"""``ncclInProgress``, which is no error; 0 is ``ncclSuccess``."""
_SIGNS: Final = (b'"nccl_version"', b'"communicators_count"')
_SIGN_BYTES: Final = 4096


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
    """True if its beginning is that of an answer."""
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
        item = json.loads(data)
        communicators = tuple([_communicator(one) for one in item["communicators"]])
        timeouts = integer(item.get("ras", {}).get("timeouts_count", 0))
        return RasAnswer(path, text(item["nccl_version"]), text(item.get("timestamp", "")), timeouts, communicators)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no answer of NCCL's RAS, or not a whole one ({type(error).__name__})") from error


def _communicator(item: Mapping[str, Any]) -> RasCommunicator:
    ranks = [_rank(one) for one in item["ranks"]] + [_missing(one) for one in item.get("missing_ranks", ())]
    return RasCommunicator(text(item["hash"]), integer(item["size"]), tuple(sorted(ranks, key=lambda one: one.rank)))


def _rank(item: Mapping[str, Any]) -> RasRank:
    status = item.get("status", {})
    error = integer(status.get("async_error", 0))
    counts = {operation_name(text(name)): integer(count) for name, count in item.get("collective_counts", {}).items()}
    return RasRank(
        integer(item["rank"]),
        text(item.get("host", "")),
        _pid(item),
        error=0 if error == IN_PROGRESS else error,
        is_aborted=status.get("abort_flag") is True,
        counts=counts,
    )


def _missing(item: Mapping[str, Any]) -> RasRank:
    is_dead = item.get("status", {}).get("considered_dead") is True
    return RasRank(integer(item["rank"]), text(item.get("host", "")), _pid(item), is_missing=True, is_dead=is_dead)


def _pid(item: Mapping[str, Any]) -> int:
    pid = item.get("pid", 0)
    return 0 if pid == -1 else integer(pid)  # -1: RAS does not know it
