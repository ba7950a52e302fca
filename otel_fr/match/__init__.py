"""The match engine: findings from evidence, causes first. Pure functions, used for live telemetry and for files.

`model` has the input (`Evidence`) and the output (`Finding`). A judgement goes through these modules in order:
`gaps` leaves out what ranks recorded whose recording had errors;
`instances` brings the calls of one collective or message together; `legal` says when two calls may differ, and
`mismatch` finds the instances that disagree; `endings` sorts ended ranks into causes and victims; `waiting` builds the
wait-for graph, and `cycles` finds its cycles. `case` holds these results and the findings so far. `diagnose` finds the
causes, with `misdirected` (messages to the wrong rank) and `device` (ranks stuck on the device); `consequences` finds
what followed from them, and `overdue` which ranks have missed a heartbeat or overrun a section. `decisions` adds where
culprits first decided otherwise than their peers. `undecided` lists what
evidence without findings leaves open, and the ranks nearest to it.
`sentences` has the texts, and `machines` the names of the ranks' machines in them.
"""

from otel_fr.match.case import Case
from otel_fr.match.facts.legal import Difference, compare
from otel_fr.match.finding import Category, Finding, StackGroup
from otel_fr.match.findings import diagnose
from otel_fr.match.model import (
    UNPLACED,
    WAIT_SHARE,
    Call,
    CallState,
    Decision,
    Ending,
    Evidence,
    Group,
    Overdue,
    Place,
    Progress,
    Rank,
    Signature,
    ThreadException,
    window_of,
)
from otel_fr.match.texts.calls import call_text
from otel_fr.match.undecided import Suspects, lagging_calls, open_questions, suspects
from otel_fr.operations import NewGroup

__all__ = [
    "UNPLACED",
    "WAIT_SHARE",
    "Call",
    "CallState",
    "Case",
    "Category",
    "Decision",
    "Difference",
    "Ending",
    "Evidence",
    "Finding",
    "Group",
    "NewGroup",
    "Overdue",
    "Place",
    "Progress",
    "Rank",
    "Signature",
    "StackGroup",
    "Suspects",
    "ThreadException",
    "call_text",
    "compare",
    "diagnose",
    "lagging_calls",
    "open_questions",
    "suspects",
    "window_of",
]
