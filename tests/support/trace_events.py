"""Checks a trace against the Trace Event Format (`otel_fr.analyze.output.perfetto.FORMAT`), and against Perfetto's
importer (``src/trace_processor/importers/json``).

Two events of a thread are nested or do not overlap. The two ends of an arrow have the same id, name and category. Each
lies in a slice, and the first is not after the second. No process or thread has the number 0.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, NamedTuple

Event = dict[str, Any]


class Slice(NamedTuple):
    """A complete event, from ``start`` to ``end`` (nanoseconds) on a thread of a process."""

    process: str
    thread: str
    name: str
    start: int
    end: int
    args: dict[str, Any]


class Trace:
    """A trace that passed the checks.

    Attributes:
        slices: all complete events.
        arrows: (innermost slice where it begins, innermost slice where it ends).
    """

    def __init__(self, text: str) -> None:
        """Raises AssertionError if the text breaks a rule."""
        data = json.loads(text)
        assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
        assert data["displayTimeUnit"] in ("ms", "ns")
        self.about: dict[str, Any] = data["otherData"]
        events: list[Event] = data["traceEvents"]
        self._processes: dict[int, str] = {}
        self._threads: dict[tuple[int, int], str] = {}
        self._at: dict[tuple[int, int], list[Slice]] = defaultdict(list)
        owner: dict[int, int] = {}
        for event in events:
            _check(event)
            if "tid" in event:
                assert owner.setdefault(event["tid"], event["pid"]) == event["pid"], "a thread of two processes"
        for event in events:
            if event["ph"] == "M":
                self._named(event)
        for event in events:
            if event["ph"] == "X":
                thread = (event["pid"], event["tid"])
                start = _ns(event["ts"])
                found = Slice(
                    self._processes[event["pid"]],
                    self._threads[thread],
                    event["name"],
                    start,
                    start + _ns(event["dur"]),
                    event["args"],
                )
                self._at[thread].append(found)
        self.slices = [item for of in self._at.values() for item in of]
        for of in self._at.values():
            _check_nesting(of)
        self.arrows = self._arrows(events)

    def _named(self, event: Event) -> None:
        name = event["args"]["name"]
        assert name
        if event["name"] == "process_name":
            assert event["pid"] not in self._processes
            self._processes[event["pid"]] = name
        else:
            thread = (event["pid"], event["tid"])
            assert thread not in self._threads
            self._threads[thread] = name

    def _arrows(self, events: list[Event]) -> list[tuple[Slice, Slice]]:
        ends: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            if event["ph"] in ("s", "f"):
                ends[event["id"]].append(event)
        found = []
        for first, last in ends.values():
            assert (first["ph"], last["ph"], last["bp"]) == ("s", "f", "e")
            assert (first["name"], first["cat"]) == (last["name"], last["cat"])
            assert _ns(first["ts"]) <= _ns(last["ts"])
            found.append((self._enclosing(first), self._enclosing(last)))
        return found

    def _enclosing(self, event: Event) -> Slice:
        at = _ns(event["ts"])
        around = [item for item in self._at[event["pid"], event["tid"]] if item.start <= at <= item.end]
        assert around, "an arrow that leads from or to nothing"
        return max(around, key=lambda item: item.start)

    def of(self, process: str) -> list[Slice]:
        """Return the slices of one process, ordered by time."""
        return sorted((item for item in self.slices if item.process == process), key=lambda item: item.start)


def _ns(micro: float) -> int:
    return round(micro * 1000)


def _check(event: Event) -> None:
    kind = event["ph"]
    required = {
        "M": {"name", "pid", "args"},
        "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
        "s": {"name", "cat", "pid", "tid", "ts", "id"},
        "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
    }[kind]
    optional = {"tid"} if kind == "M" and event["name"] == "thread_name" else set()
    assert required <= set(event) <= required | optional | {"ph"}, event
    for name in ("pid", "tid", "id"):
        assert name not in event or (type(event[name]) is int and 0 < event[name] < 1 << 32), event
    for name in ("ts", "dur"):
        assert name not in event or (isinstance(event[name], (int, float)) and event[name] >= 0), event
    for name in ("name", "cat"):
        assert name not in event or (isinstance(event[name], str) and event[name]), event
    assert isinstance(event.get("args", {}), dict)


def _check_nesting(slices: list[Slice]) -> None:
    """Check that complete events of one thread are nested or do not overlap."""
    stack: list[int] = []
    for item in sorted(slices, key=lambda item: (item.start, -item.end)):
        while stack and stack[-1] <= item.start:
            stack.pop()
        assert not stack or item.end <= stack[-1], f"{item.name} overlaps another event of {item.thread}"
        stack.append(item.end)
