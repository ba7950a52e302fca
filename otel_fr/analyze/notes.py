"""What the files of a run do not show: each note says its kind to the program and one sentence to the reader."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class NoteKind(Enum):
    """What a note is about."""

    ODD_FILE = auto()
    """Something in a file is not as it should be."""
    PARTIAL_FILE = auto()
    """A file does not hold every call of its rank."""
    OUTDATED_FILE = auto()
    """A file was written before what others show."""
    NO_FILE = auto()
    """Ranks of the run without a file; ``--allow-incomplete-ranks`` leaves these notes out."""
    NO_COMPLETIONS = auto()
    """The recorder does not record which calls completed."""
    MESSAGES = auto()
    """Sends and receives that cannot be matched."""
    OPEN_COLLECTIVE = auto()
    """A collective that may be blocked or still running (`otel_fr.match.open_questions`)."""
    ELSEWHERE = auto()
    """A rank came out of step with its group, and no fault shows: whether that does harm is not known."""


@dataclass(frozen=True, slots=True)
class Note:
    """``text``: one sentence."""

    kind: NoteKind
    text: str
