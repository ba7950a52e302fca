"""Recognizes exceptions of failed communication (a peer is gone or does not come), and of a stop.

Only the text of a recorded exception is known: ``"type: message"``. Builtin types have no module name.
Imports only the standard library.
"""

from __future__ import annotations

import builtins
import re
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Final

_OF_TORCH: Final = "torch.distributed."
"""Prefix of the types of `torch.distributed`: ``DistBackendError`` and the like, and the exceptions of its packages."""
BACKEND: Final = "torch.distributed.DistBackendError"
"""Raised in a rank whose collective timed out or was aborted, even if its backend does not show ends."""
STORE: Final = ("torch.distributed.DistStoreError", "torch.distributed.DistNetworkError")
"""Raised in a rank that timed out waiting for others at the job's store, for example when it creates a group."""
WAIT: Final = "RuntimeError: Operation timed out!"
"""Raised by ``Work.wait(timeout)`` at its timeout, while the call stays in flight (c10d/Work.cpp)."""
_WORDS: Final = (
    *("gloo", "Gloo connectFullMesh failed", "Connection closed by peer", "monitoredBarrier", "Timed out waiting "),
    *("NCCL error", "NCCL communicator ", "nccl", "collective operation timeout", "Operation timed out!"),
    *("Wait timeout", "wait timeout after ", "Timeout waiting for key: ", "Socket Timeout"),
)
"""Parts of messages of gloo, NCCL and the store. Some versions of torch raise them as plain RuntimeErrors. Messages
about wrong arguments have none of these parts (``ProcessGroupGloo::...``, ``... NCCL built in``), nor has
``DataLoader timed out``."""


_LOST: Final = ("Connection closed by peer", "Connection reset by peer")
"""Parts of gloo's messages, when a peer has ended, which closes its connections."""
STOP_SIGNALS: Final = frozenset({SIGHUP, SIGINT, SIGTERM})
"""Signals with which launchers and users end a rank that is not at fault (torchrun sends SIGTERM to its peers)."""
_INTERRUPT: Final = KeyboardInterrupt.__name__
"""What Ctrl-C raises, unless the program handles the signal."""
FROM: Final = " (from "
"""In an exception's text, precedes its cause, or the exception that was handled then (`otel_fr.capture.exceptions`)."""
_NAMES: Final = "|".join(sorted(signal.name for signal in STOP_SIGNALS))
_STOP: Final = re.compile(
    rf"(?:while handling )?(?:{_INTERRUPT}|SignalException|SystemExit: 0|(?:{_NAMES})\b)|[^\n]*\(from {_INTERRUPT}\b"
)
_BY_USER: Final = re.compile(rf"\b(?:{_INTERRUPT}|{SIGINT.name})\b")


def type_name(kind: type[BaseException]) -> str:
    """Return the type as it is recorded: ``"RuntimeError"``, ``"torch.distributed.DistBackendError"``."""
    name, module = kind.__qualname__, kind.__module__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def is_communication(exception: str) -> bool:
    """True if a recorded exception may come from a failed call of communication."""
    kind, _, message = exception.partition(": ")
    if kind != "RuntimeError" and hasattr(builtins, kind):
        return False
    return kind.startswith(_OF_TORCH) or any(word in message for word in _WORDS)


def tells_of_lost_peer(exception: str) -> bool:
    """True if a recorded exception comes from the end of a peer, not from a timeout."""
    return is_communication(exception) and any(text in exception for text in _LOST)


def is_of_communication(error: BaseException) -> bool:
    """Like `is_communication`, for an exception object, whose base classes are known."""
    kinds = [type_name(kind) for kind in type(error).__mro__ if issubclass(kind, BaseException)]
    return any(
        is_communication(f"{kind}: {error}") for kind in kinds if kind == "RuntimeError" or kind.startswith(_OF_TORCH)
    )


def tells_of_stop(text: str) -> bool:
    """True if an exception, or a message of ``sys.exit``, comes from Ctrl-C or a launcher's signal, directly or not."""
    return bool(_STOP.match(text))


def tells_of_user(text: str) -> bool:
    """True if a text for which `tells_of_stop` is true comes from Ctrl-C."""
    return bool(_BY_USER.search(text))
