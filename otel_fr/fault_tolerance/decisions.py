"""What the program decides, by name: where ranks decide differently, a hang often begins.

Runs in the training thread: nothing here locks, waits, calls the operating system, reads a tensor or raises.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from otel_fr.fault_tolerance import sections
from otel_fr.ring import DecisionWriter
from otel_fr.ring.decision_layout import MAX_NAME, NAMES

_log = logging.getLogger("otel_fr")

MAX_ITEMS: Final = 16
"""Items of a tuple or list that its text shows; more are counted."""
MAX_CHARACTERS: Final = 4_096
"""Of a text that is compared."""

_PLAIN: Final = frozenset({bool, int, float, str, type(None)})
"""Types whose values can be compared and written without running code of others."""


class _Name:
    """One name. ``word``: of the ring, that counts its decisions; -1: there is none."""

    __slots__ = ("index", "kind", "number", "text", "value", "word")

    def __init__(self, index: int) -> None:
        self.index = index
        self.word = -1
        self.number = 0
        self.kind: type = _Name
        self.value: object = None
        self.text = ""


class _State:
    """``ring``: of the recording; None: there is none. ``names``: by name."""

    def __init__(self) -> None:
        self.ring: DecisionWriter | None = None
        self.names: dict[str, _Name] = {}
        self.next_name: Callable[[], int] = itertools.count(0).__next__
        self.watches_forks = False


_state = _State()


def decision(name: str, value: object) -> None:
    """Tell what this rank has decided: ``otel_fr.decision("skip_batch", skip)``.

    Where a rank is named in an incident, the first decision in which it differed from its peers is named, too. The
    n-th decision of a name is compared with the n-th of the other ranks, so each rank has to tell each of them. A
    difference alone is no fault. Takes less than a microsecond while the value stays the same. Never raises.

    Args:
        name: the first 112 bytes count; a few dozen different ones at most.
        value: a bool, number, text or None, or a tuple or list of these. Of anything else only the type counts: a
            tensor is not read.
    """
    try:
        ring = _state.ring
        if ring is None:
            return
        known = _state.names.get(name)
        if known is not None and known.kind is value.__class__ and known.kind in _PLAIN and known.value == value:
            known.number += 1
            if known.word >= 0:
                ring.count(known.word, known.number)
            return
        _decide(ring, name, known, value, sections.current_step())
    except Exception as error:  # noqa: BLE001 - the job comes first
        failed(error)


def decided(name: str, value: str, step: int) -> None:
    """Record what otel-fr has noticed without the program, as `decision` does. Never raises.

    Args:
        step: number of the training step that it belongs to; -1: none.
    """
    try:
        ring = _state.ring
        if ring is None:
            return
        known = _state.names.get(name)
        if known is None or known.text != value:
            _decide(ring, name, known, value, step)
        elif known.word >= 0:
            known.number += 1
            ring.count(known.word, known.number)
    except Exception as error:  # noqa: BLE001
        failed(error)


def happened(name: str, value: str) -> None:
    """Record an event of the current step, also if it is equal to the one before. Never raises."""
    try:
        ring = _state.ring
        if ring is not None:
            known = _state.names.get(name)
            if known is not None:
                known.kind, known.text = _Name, ""
            _decide(ring, name, known, value, sections.current_step())
    except Exception as error:  # noqa: BLE001
        failed(error)


def failed(error: Exception) -> None:
    """A decision could not be recorded."""
    _log.debug("otel-fr: could not record a decision: %s", error)
    ring = _state.ring
    if ring is not None:
        with contextlib.suppress(Exception):
            ring.count_failure()


def _decide(ring: DecisionWriter, name: str, known: _Name | None, value: object, step: int) -> None:
    """A new name, or maybe another value."""
    if known is None:
        if not isinstance(name, str) or len(_state.names) >= NAMES:
            return
        name = name[:MAX_NAME]
        known = _state.names.get(name)
        if known is None:
            known = _state.names[name] = _Name(_state.next_name())
            known.word = ring.add_name(known.index, name)
    kind, plain = value.__class__, value if value.__class__ in _PLAIN else None
    if isinstance(value, (tuple, list)) and len(value) <= MAX_ITEMS and _PLAIN.issuperset(map(type, value)):
        plain = tuple(value)
        if known.kind is kind and known.value == plain and known.word >= 0:
            known.number += 1
            ring.count(known.word, known.number)
            return
    text = _text(value)
    is_new = text != known.text or known.number == 0
    known.number = number = known.number + 1
    known.kind, known.text, known.value = kind, text, plain
    if known.word < 0:
        return
    if is_new:
        ring.change(known.index, number, step, monotonic_ns(), text)
    ring.count(known.word, number)


def _text(value: object) -> str:
    """A value as text, without running code of others: a tensor would be awaited to be written."""
    if value.__class__ in _PLAIN:
        return value[:MAX_CHARACTERS] if isinstance(value, str) else str(value)
    if value.__class__.__module__ == "numpy" and hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return str(value)  # a scalar, which is in memory
    if isinstance(value, (tuple, list)):
        shown = [_text(item) if item.__class__ in _PLAIN else _kind(item) for item in value[:MAX_ITEMS]]
        more = [f"... ({len(value)} in all)"] if len(value) > MAX_ITEMS else []
        return f"({', '.join([*shown, *more])})"
    return _kind(value)


def _kind(value: object) -> str:
    return f"<{value.__class__.__name__}>"


def attach(ring: DecisionWriter) -> None:
    """The recording has started. Decisions are counted from now on."""
    if not _state.watches_forks:
        _state.watches_forks = True
        os.register_at_fork(after_in_child=detach)
    _state.names = {}
    _state.next_name = itertools.count(0).__next__
    _state.ring = ring


def detach() -> None:
    """The recording ends, or this is a forked child, which is not the rank."""
    _state.ring = None


sections.keep_out(decision)
