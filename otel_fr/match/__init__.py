"""The match engine: what happened, who started it, what merely followed.

Pure functions over `Evidence`; used by the live collector and by the offline analyzer alike.
"""

from otel_fr.match.diagnose import diagnose
from otel_fr.match.legal import Difference, compare
from otel_fr.match.model import Call, CallState, Category, Ending, Evidence, Finding, Group, Progress, Rank, Signature
from otel_fr.match.undecided import open_questions

__all__ = [
    "Call",
    "CallState",
    "Category",
    "Difference",
    "Ending",
    "Evidence",
    "Finding",
    "Group",
    "Progress",
    "Rank",
    "Signature",
    "compare",
    "diagnose",
    "open_questions",
]
