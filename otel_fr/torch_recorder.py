"""PyTorch's own flight recorder, as a process that runs can be asked for it.

The one place that knows what versions of PyTorch name differently (docs/compatibility.md has the table). Everything
else asks the server which handlers it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

SOCKET_KEY: Final = "recorder_socket"
"""In a ring's meta: path of the Unix socket on which torch's ``_WorkerServer`` of the rank listens."""

CAPTURE_KEY: Final = "capture"
"""In a ring's meta: `otel_fr.config.Config.capture` of the rank."""

LIST_TARGET: Final = "/handler/"
"""GET: the names of all handlers, as a JSON list."""


class Handler(NamedTuple):
    """One handler of the server that returns a recorder's entries as JSON.

    Attributes:
        query: of the request that asks for all entries.
        backends: c10d backends, by torch's names of them, whose calls are among these entries.
        shows_ends: entries show by themselves when the device began and ended a call. If not, ``retired`` shows that
            it ended, and nothing shows when or how.
    """

    name: str
    query: str
    backends: frozenset[str]
    shows_ends: bool

    @property
    def target(self) -> str:
        """Path and query of the request."""
        return f"{LIST_TARGET}{self.name}" + (f"?{self.query}" if self.query else "")


HANDLERS: Final = (
    Handler("dump_nccl_trace_json", "includecollectives=true&onlyactive=false", frozenset({"nccl"}), True),
    Handler("fr_trace_json", "", frozenset({"gloo"}), False),
)
"""NCCL's process groups record into a recorder of their own, which only its own handler shows, in every version.
``fr_trace_json`` is that of other backends: gloo. It leaves out completed calls, of which gloo's entries show none."""


def of_backend(backend: str) -> Handler | None:
    """The handler that shows the calls of a c10d backend; None: no known one does."""
    return next((handler for handler in HANDLERS if backend in handler.backends), None)


def is_of_device(backend: str) -> bool:
    """True if PyTorch's recorder knows when devices begin and end the calls of this backend."""
    handler = of_backend(backend)
    return handler is not None and handler.shows_ends


def shows_ends(backends: Iterable[str]) -> bool:
    """True if PyTorch's recorder knows when devices begin and end the calls of one of these backends."""
    return any(map(is_of_device, backends))
