"""The sections of a rank report about NCCL's RAS: the odd facts in its answer, bounded."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from otel_fr.rank_report.bounds import Count, Integer, Seconds, Sizes
from otel_fr.rank_report.section import Section

MAX_COMMUNICATORS: Final = 8
"""Communicators with odd facts in a report."""
MAX_FACTS: Final = 16
"""Facts about one communicator."""
MAX_RANKS_TEXT: Final = 256
"""Characters of the ranks of a fact."""
MAX_PROCESSES: Final = 32
"""Ranks of a communicator whose process ids are reported. They show which process group it belongs to."""
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

_Label = Annotated[str, Meta(max_length=MAX_LABEL)]


class ReportedFact(Section, frozen=True):
    """An odd fact about some ranks of a communicator."""

    kind: Annotated[
        _Label,
        Meta(
            description="`silent`: they did not answer; `dead`: nor does NCCL expect them to any more; `error`: NCCL's"
            " error `number`; `aborted`: the communicator was aborted there; `started`: they have started `number`"
            " calls of `op`, and others another number"
        ),
    ]
    ranks: Annotated[
        str,
        Meta(
            max_length=MAX_RANKS_TEXT,
            description="their numbers in the communicator, such as `0-2,7`; the first ones",
        ),
    ]
    more: Annotated[Count, Meta(description="how many more they are")] = 0
    number: Annotated[Integer | None, Meta(description="see `kind`")] = None
    operation: Annotated[_Label, Meta(description="see `kind`; name in `torch.distributed`")] = field(
        name="op", default=""
    )


class ReportedCommunicator(Section, frozen=True):
    """A communicator of NCCL with odd facts."""

    id: Annotated[_Label, Meta(description="its hash, by which NCCL's log calls it")]
    size: Annotated[Integer, Meta(description="number of its ranks")]
    processes: Annotated[
        Sizes, Meta(description="`[number in the communicator, process id]` of some of its ranks, at most 32")
    ] = field(name="pids", default=())
    facts: Annotated[tuple[ReportedFact, ...], Meta(max_length=MAX_FACTS, description="at most 16")] = ()


class ReportedRas(Section, frozen=True):
    """One answer of NCCL's RAS."""

    age_s: Annotated[Seconds | None, Meta(description="since it was asked")] = None
    version: Annotated[_Label, Meta(description="NCCL's version")] = field(name="nccl", default="")
    communicators: Annotated[Count, Meta(description="how many communicators there are")] = field(
        name="count", default=0
    )
    timeouts: Annotated[Count, Meta(description="how often a process did not answer RAS in time")] = 0
    odd: Annotated[
        tuple[ReportedCommunicator, ...],
        Meta(max_length=MAX_COMMUNICATORS, description="those with something odd, at most 8"),
    ] = ()
    odd_more: Annotated[Count, Meta(description="how many more are odd")] = 0
    diagnostics: Annotated[
        str,
        Meta(
            max_length=MAX_DIAGNOSTICS,
            description="what NCCL's diagnostics say may need a look, in lines",
        ),
    ] = ""
