"""What a rank report says of NCCL's RAS: the odd things in its answer, bounded; sections as in `rank_report`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, NamedTuple, TypeVar

from otel_fr.rank_report.forms import (
    COUNT,
    INTEGER,
    OPTIONAL_INTEGER,
    SECONDS,
    SIZES,
    Exact,
    Form,
    Json,
    Key,
    Sizes,
    reader_of,
    text,
)

_T = TypeVar("_T")

MAX_COMMUNICATORS: Final = 8
"""Communicators with something odd, of a report."""
MAX_FACTS: Final = 16
"""Facts of one of them."""
MAX_RANKS_TEXT: Final = 256
"""Characters of the ranks of a fact."""
MAX_PROCESSES: Final = 32
"""Ranks of a communicator whose process ids are told: they show whose process group it is."""
MAX_DIAGNOSTICS: Final = 1_600
"""Characters of NCCL's diagnostics."""
MAX_LABEL: Final = 64
"""Characters of an operation, a hash or a version."""

SILENT: Final = "silent"
DEAD: Final = "dead"
ERROR: Final = "error"
ABORTED: Final = "aborted"
STARTED: Final = "started"
KINDS: Final = (SILENT, DEAD, ERROR, ABORTED, STARTED)


def _list_of(read: Callable[[Json], _T], section: type, most: int, name: str) -> Form:
    def read_all(value: object) -> tuple[_T, ...]:
        return tuple([read(item) for item in value[:most] if isinstance(item, dict)]) if isinstance(value, list) else ()

    return Form(read_all, (), f"list of {name}", Exact(section, lists=(most,)))


class ReportedFact(NamedTuple):
    """Something odd of some ranks of a communicator."""

    kind: Annotated[
        str,
        Key(
            "kind",
            text(MAX_LABEL),
            "`silent`: they did not answer; `dead`: nor does NCCL expect them to any more; `error`: NCCL's error"
            " `number`; `aborted`: the communicator was aborted there; `started`: they have started `number` calls of"
            " `op`, and others another number",
        ),
    ]
    ranks: Annotated[
        str, Key("ranks", text(MAX_RANKS_TEXT), "their numbers in the communicator, such as `0-2,7`; the first ones")
    ]
    more: Annotated[int, Key("more", COUNT, "how many more they are", optional=True)] = 0
    number: Annotated[int | None, Key("number", OPTIONAL_INTEGER, "see `kind`", optional=True)] = None
    operation: Annotated[str, Key("op", text(MAX_LABEL), "see `kind`; name in `torch.distributed`", optional=True)] = ""


class ReportedCommunicator(NamedTuple):
    """A communicator of NCCL with something odd."""

    id: Annotated[str, Key("id", text(MAX_LABEL), "its hash, by which NCCL's log calls it")]
    size: Annotated[int, Key("size", INTEGER, "number of its ranks")]
    processes: Annotated[
        Sizes, Key("pids", SIZES, "`[number in the communicator, process id]` of some of its ranks, at most 32")
    ]
    facts: Annotated[
        tuple[ReportedFact, ...],
        Key("facts", _list_of(reader_of(ReportedFact), ReportedFact, MAX_FACTS, "FACT"), "at most 16"),
    ]


class ReportedRas(NamedTuple):
    """One answer of NCCL's RAS."""

    age_s: Annotated[float | None, Key("age_s", SECONDS, "since it was asked")]
    version: Annotated[str, Key("nccl", text(MAX_LABEL), "NCCL's version")]
    communicators: Annotated[int, Key("count", COUNT, "how many communicators there are")]
    timeouts: Annotated[int, Key("timeouts", COUNT, "how often a process did not answer RAS in time")]
    odd: Annotated[
        tuple[ReportedCommunicator, ...],
        Key(
            "odd",
            _list_of(reader_of(ReportedCommunicator), ReportedCommunicator, MAX_COMMUNICATORS, "COMMUNICATOR"),
            "those with something odd, at most 8",
        ),
    ] = ()
    odd_more: Annotated[int, Key("odd_more", COUNT, "how many more are odd", optional=True)] = 0
    diagnostics: Annotated[
        str,
        Key(
            "diagnostics", text(MAX_DIAGNOSTICS), "what NCCL's diagnostics say may need a look, in lines", optional=True
        ),
    ] = ""
