"""The faults, how a job with each of them ends, and which ranks may be named."""

from __future__ import annotations

import enum
from dataclasses import dataclass

STEPS = 12
HELD_SECONDS = 8
"""Seconds for which a slow rank does nothing: twice the stall time."""


class Blame(enum.Enum):
    """Who is named at the end: the victim; the victim or nobody; nobody."""

    VICTIM = "victim"
    PERHAPS = "perhaps"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        blame: whom the collector may name. It must never name an innocent rank.
        outside: the test causes it, at any moment after the victim's first step.
        early: it may also come before the process group exists. If `late` is not set, it always comes then.
        keeps_ring: the ring may stay behind, because the evidence could not be written elsewhere.
    """

    name: str
    blame: Blame
    outside: bool = False
    early: bool = False
    late: bool = True
    keeps_ring: bool = False


FAULTS = {
    one.name: one
    for one in (
        Fault("none", Blame.NOBODY),
        Fault("kill", Blame.VICTIM),
        Fault("killed", Blame.VICTIM, outside=True),
        Fault("kill full", Blame.VICTIM, keeps_ring=True),
        Fault("term", Blame.VICTIM),
        Fault("segfault", Blame.VICTIM),
        Fault("abort", Blame.VICTIM),
        Fault("exit", Blame.VICTIM),
        Fault("raise", Blame.VICTIM),
        Fault("exec", Blame.VICTIM),
        Fault("close", Blame.PERHAPS, early=True),
        Fault("never", Blame.PERHAPS, early=True, late=False),
        Fault("stopped", Blame.PERHAPS, outside=True),
        Fault("frozen", Blame.PERHAPS, outside=True),
        Fault("all frozen", Blame.NOBODY, outside=True),
        Fault("gil", Blame.PERHAPS),
        Fault("sleep", Blame.PERHAPS),
        Fault("fork", Blame.NOBODY, early=True),
        Fault("spawn", Blame.NOBODY, early=True),
        Fault("files", Blame.NOBODY, early=True),
        Fault("processes", Blame.NOBODY, early=True),
        Fault("full", Blame.NOBODY),
        Fault("monitor killed", Blame.PERHAPS, outside=True),
        Fault("monitor stopped", Blame.PERHAPS, outside=True),
        Fault("collector killed", Blame.NOBODY, outside=True),
        Fault("collector stopped", Blame.NOBODY, outside=True),
        Fault("no collector", Blame.NOBODY),
        Fault("network cut", Blame.NOBODY, outside=True),
        Fault("clock", Blame.NOBODY),
        Fault("kill clock", Blame.VICTIM),
    )
}
