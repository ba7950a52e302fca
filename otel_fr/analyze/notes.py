"""Notes on what the files of a run do not show. A note has a kind for programs and a sentence for readers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class NoteKind(Enum):
    """What a note is about."""

    ODD_FILE = auto()
    """A file has an irregularity."""
    PARTIAL_FILE = auto()
    """A file does not contain every call of its rank."""
    OUTDATED_FILE = auto()
    """A file is older than another rank's, which contradicts it."""
    NO_FILE = auto()
    """Ranks have no file. ``--allow-incomplete-ranks`` leaves these notes out."""
    NO_COMPLETIONS = auto()
    """The recorder does not record which calls completed."""
    MESSAGES = auto()
    """Sends and receives that cannot be matched."""
    OPEN_COLLECTIVE = auto()
    """A collective that may be blocked or still running (`otel_fr.match.open_questions`)."""
    ELSEWHERE = auto()
    """A rank's last calls were at other lines than most of its group's. This may be harmless."""


@dataclass(frozen=True, slots=True)
class Note:
    """``text``: one sentence."""

    kind: NoteKind
    text: str
