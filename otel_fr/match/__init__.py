"""The match engine: findings from evidence, causes first. Pure functions, used for live telemetry and for files.

`model` has the input (`Evidence`), `finding` the output. A judgement goes through the folders in this order, and none
changes what one before has made: `facts` says what each call and each rank is, `graph` who waits for whom, and `case`
holds both. `rules` decides by a table of named rules what is claimed of the roots of waits; `texts` has its sentences.
`findings` makes findings of the claims. `undecided` lists what evidence without findings leaves open, and the ranks
nearest to it; `lateness` is about a rank that comes last again and again, which no call that waits shows.
"""

from otel_fr.match.case import Case
from otel_fr.match.facts.legal import Difference, compare
from otel_fr.match.finding import Category, Finding, StackGroup
from otel_fr.match.findings import diagnose
from otel_fr.match.model import (
    UNENDED,
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
    "UNENDED",
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
