"""Records what the program decides, by name: a hang often begins where ranks decide differently.

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
"""How many items the text of a tuple or list shows. The text of a longer one also shows its length."""
MAX_CHARACTERS: Final = 4_096
"""Most characters of a text that are compared."""

_PLAIN: Final = frozenset({bool, int, float, str, type(None)})
"""Types whose values can be compared and converted to text without running foreign code."""


class _Name:
    """The state of one name. ``word``: the ring's word that counts the name's decisions; -1: there is none."""

    __slots__ = ("index", "kind", "number", "text", "value", "word")

    def __init__(self, index: int) -> None:
        self.index = index
        self.word = -1
        self.number = 0
        self.kind: type = _Name
        self.value: object = None
        self.text = ""


class _State:
    """State of this process. ``ring`` is the recording's writer; None: nothing is recorded."""

    def __init__(self) -> None:
        self.ring: DecisionWriter | None = None
        self.names: dict[str, _Name] = {}
        self.next_name: Callable[[], int] = itertools.count(0).__next__
        self.watches_forks = False


_state = _State()


def decision(name: str, value: object) -> None:
    """Record what this rank has decided: ``otel_fr.decision("skip_batch", skip)``.

    An incident that names a rank also names the first decision in which the rank differed from its peers. The n-th
    decision of a name is compared with the n-th decision of the other ranks, so each rank must record each of them. A
    difference alone is no fault. Takes less than a microsecond while the value stays the same. Never raises.

    Args:
        name: the first 112 bytes count. Use a few dozen different names at most.
        value: a bool, number, text or None, or a tuple or list of these. For other values, only the type counts: a
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
    """Record a decision that otel-fr has noticed; see `decision`. Never raises.

    Args:
        step: number of the training step to which the decision belongs; -1: none.
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
    """Record an event of the current step, even if it equals the previous one. Never raises."""
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
    """Count a decision that could not be recorded."""
    _log.debug("otel-fr: could not record a decision: %s", error)
    ring = _state.ring
    if ring is not None:
        with contextlib.suppress(Exception):
            ring.count_failure()


def _decide(ring: DecisionWriter, name: str, known: _Name | None, value: object, step: int) -> None:
    """Record a decision with a new name, or with a value that may be new."""
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
    """Return a value as text, without running foreign code: the text of a tensor would wait for the device."""
    if value.__class__ in _PLAIN:
        return value[:MAX_CHARACTERS] if isinstance(value, str) else str(value)
    if value.__class__.__module__ == "numpy" and hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return str(value)  # a numpy scalar is in memory
    if isinstance(value, (tuple, list)):
        shown = [_text(item) if item.__class__ in _PLAIN else _kind(item) for item in value[:MAX_ITEMS]]
        more = [f"... ({len(value)} in all)"] if len(value) > MAX_ITEMS else []
        return f"({', '.join([*shown, *more])})"
    return _kind(value)


def _kind(value: object) -> str:
    return f"<{value.__class__.__name__}>"


def attach(ring: DecisionWriter) -> None:
    """Count decisions from now on, because the recording has started."""
    if not _state.watches_forks:
        _state.watches_forks = True
        os.register_at_fork(after_in_child=detach)
    _state.names = {}
    _state.next_name = itertools.count(0).__next__
    _state.ring = ring


def detach() -> None:
    """Stop: the recording ends, or this is a forked child, which is not the rank."""
    _state.ring = None


sections.keep_out(decision)
