"""Reads the text of stacks that `faulthandler` and `traceback` write, and the lines of a rank's latest calls."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Final, NamedTuple

NATIVE_HEADING = "Native stacks, by py-spy:"
"""Heading of the native frames in the text of a stack. They come last."""
_FRAME = re.compile(
    r'^[ |]*File "(?P<file>[^"\n]+)", line (?P<line>\d+),? in (?P<name>[^\n]+)(?:\n[ |]*    (?P<source>[^\n]*))?',
    re.MULTILINE,
)
_WORKER = re.compile(
    r"^DataLoader worker, process (?P<pid>\d+)[^\n]*\n(?:(?! {4})[^\n]+\n)?(?: {4}[^\n]*\n)*?"
    r" {4}(?P<name>[^\n()]{1,200}) \((?P<place>[^\n()]{1,300}:\d+)\)\n"
    r" {4}[^\n]* \(torch/utils/data/_utils/fetch\.py:\d+\)$",
    re.MULTILINE,
)
"""A worker, and the frame that torch's fetcher has called."""
_CHAINED = re.compile(
    "^[ |]*(During handling of the above exception, another exception occurred:"
    "|The above exception was the direct cause of the following exception:)$",
    re.MULTILINE,
)
_HEADS = ("Thread ", "Current thread ", "Stack ")
ORDER = "(most recent call "
"""Part of the headings of threads and exceptions."""
NEWEST_FIRST = f"{ORDER}first"
_LIBRARIES = ("/torch/", "/otel_fr/", "/torchcomms/", "/torchinductor_", "/contextlib.py", "<frozen ", "<string>")
_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/python3[^/]*/(?!(?:site|dist)-packages/)")
_PACKAGES = "-packages/"
ALPHABET: Final = string.digits + string.ascii_letters + "-_"
"""One character for each place where calls were made (docs/reference/rank-report.md)."""
_WRAPPERS = ("/typing_extensions.py", "/wrapt/", "/decorator.py", "/opentelemetry/")


def is_wrapper(file: str) -> bool:
    """True for installed packages that only wrap functions, as `typing_extensions` does with deprecated ones."""
    return _PACKAGES in file and any(part in file for part in _WRAPPERS)


def is_library(file: str) -> bool:
    """True for torch, otel-fr, the standard library, generated code and wrappers: no call there is the user's own.

    Other installed packages count as the user's: they call collectives of their own.
    """
    return any(part in file for part in _LIBRARIES) or is_wrapper(file) or bool(_STANDARD_LIBRARY.search(file))


class Frame(NamedTuple):
    """One frame in the text of a stack. ``source``: the line of code, if the text has it."""

    file: str
    line: str
    name: str
    source: str

    @property
    def place(self) -> str:
        """``"file:line function"``."""
        return f"{self.file}:{self.line} {self.name}"


class Loop(NamedTuple):
    """A loop of a program. ``first``, ``last``: its lines. ``is_nested``: the program may enter it again."""

    file: str
    first: int
    last: int
    function: str
    is_nested: bool = False

    @property
    def text(self) -> str:
        """``"train.py:38-44 main"``."""
        lines = f"{self.first}-{self.last}" if self.last > self.first else f"{self.first}"
        return f"{self.file}:{lines} {self.function}"

    def has(self, place: str) -> bool:
        """True if ``place``, ``"file:line function"``, is in the loop."""
        where, _, function = place.rpartition(" ")
        file, _, line = where.rpartition(":")
        is_there = file == self.file and function == self.function and line.isdecimal()
        return is_there and self.first <= int(line) <= self.last


Lines = Mapping[int, tuple[str, ...]]
"""Number of a collective -> the frames that called it, ``"file:line function"``, the innermost first."""


class CallLines(NamedTuple):
    """The latest collectives of one group, as a rank reports them.

    Attributes:
        group: `Group.id`.
        first: number of the first collective.
        calls: one character for each collective: its position in `ALPHABET` is the index in ``places``; other: unknown.
        places: tuples of frames, the innermost first.
    """

    group: str
    first: int
    calls: str
    places: tuple[tuple[str, ...], ...]

    def by_number(self) -> Lines:
        """Return the collectives whose places are known."""
        place_of = dict(zip(ALPHABET, self.places, strict=False))
        return {number: place_of[one] for number, one in enumerate(self.calls, self.first) if one in place_of}


def threads_of(text: str, most: int | None = None) -> list[str]:
    """Return the first ``most`` threads of a process's stacks, each with its heading."""
    starts: list[int] = []
    at = text.find(ORDER)
    while at >= 0 and (most is None or len(starts) <= most):
        start = text.rfind("\n", 0, at) + 1
        if text.startswith(_HEADS, start):
            starts.append(start)
        at = text.find(ORDER, at + 1)
    ends = [*starts[1:], len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=False)][:most]


def parts_of(text: str) -> tuple[str, str]:
    """Return the Python stacks, and the stacks with native frames without their heading; "": there are none."""
    python, _, native = f"\n{text}".partition(f"\n{NATIVE_HEADING}\n")
    return python.removeprefix("\n"), native


def first_native_thread(text: str) -> str:
    """Return the first thread with native frames; "": there are none."""
    return parts_of(text)[1].partition("\nThread ")[0]


def first_thread(text: str) -> str:
    """The first thread without native frames; the entire text if it has no heading, such as an exception's text."""
    python, _ = parts_of(text)
    found = threads_of(python, 1)
    return found[0] if found else python


def is_newest_first(thread: str) -> bool:
    """True if the heading says that the innermost frame is first. A text without its beginning has that frame last."""
    return NEWEST_FIRST in thread.partition("\n")[0]


def frames_of(text: str) -> list[Frame]:
    """The frames of the first thread, the innermost first; of chained tracebacks, those of the newest exception."""
    thread = first_thread(text)
    found = _frames(chain_of(thread)[-1])
    return found if is_newest_first(thread) else found[::-1]


def places_of(text: str) -> list[str]:
    """Return the places of the first thread, the outermost first.

    Chained tracebacks follow each other as in the text, with Python's sentence between them: the newest exception is
    last.
    """
    thread = first_thread(text)
    found: list[str] = []
    for part in chain_of(thread):
        frames = [frame.place for frame in _frames(part)]
        found += frames or ([part.strip()] if _CHAINED.fullmatch(part) and found else [])
    return found[::-1] if is_newest_first(thread) else found


def chain_of(thread: str) -> list[str]:
    """Return the tracebacks in an exception's text, and between them Python's sentences on how the next one arose."""
    return _CHAINED.split(thread)


def _frames(text: str) -> list[Frame]:
    return [Frame(one["file"], one["line"], one["name"].strip(), one["source"] or "") for one in _FRAME.finditer(text)]


def site_of(stack: str) -> str:
    """Return ``"file:line function"`` of the user's code in the first thread of a stack; "": there is no frame.

    The user's frame is the innermost one outside libraries; if all frames are in libraries, the innermost one.
    """
    frames = frames_of(stack)
    users = [frame for frame in frames if not (is_library(frame.file) or _PACKAGES in frame.file)]
    return next((frame.place for frame in users or frames), "")


def loader_workers(text: str) -> list[tuple[str, str]]:
    """The DataLoader workers in a rank's native stacks: (process id, place in the code that torch's fetcher calls)."""
    return [(one["pid"], f"{one['place']} {one['name']}") for one in _WORKER.finditer(text)]


def own_thread(name: str) -> str:
    """The name of a thread that the program has started; "": the main thread, or one of PyTorch's (autograd's)."""
    return "" if name == "MainThread" or is_of_cpp(name) else name


def is_of_cpp(name: str) -> bool:
    """True if C++ started the thread with this name, not `threading`: for example, for the backward pass."""
    return name.startswith("Dummy-")
