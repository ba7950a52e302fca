"""The match engine turns evidence into findings, causes first. Pure functions, used for live telemetry and for files.

`model` defines the input (`Evidence`), `finding` the output. A judgement passes through these parts in order. None
changes the result of an earlier one.

* `facts` determines the state of each call and each rank.
* `graph` determines who waits for whom.
* `case` holds the facts and the graph.
* `rules` tries a table of named rules on each root of a wait. The first rule that applies decides the claim.
* `texts` has the sentences.
* `findings` turns claims into findings.

`undecided` lists what evidence without findings leaves open, and the ranks that calls most likely wait for. `lateness`
describes a rank that comes last again and again, which no waiting call shows.
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
