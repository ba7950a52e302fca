"""What torch raises where a call of communication fails, because a peer has gone or does not come; what a stop raises.

Of an exception that was recorded there is only its text, ``"type: message"``; a builtin type has no module's name.
Imports nothing but the standard library.
"""

from __future__ import annotations

import builtins
import re
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Final

_OF_TORCH: Final = "torch.distributed."
"""Begins the types of `torch.distributed`: ``DistBackendError`` and its like, and the exceptions of its packages."""
BACKEND: Final = "torch.distributed.DistBackendError"
"""Raised in a rank whose collective timed out or was aborted, also if its backend does not show an end."""
STORE: Final = ("torch.distributed.DistStoreError", "torch.distributed.DistNetworkError")
"""Raised in a rank that timed out waiting for others at the job's store, as when a group is created."""
WAIT: Final = "RuntimeError: Operation timed out!"
"""Raised by ``Work.wait(timeout)`` once that time is over; the call stays in flight (c10d/Work.cpp)."""
_WORDS: Final = (
    *("gloo", "Gloo connectFullMesh failed", "Connection closed by peer", "monitoredBarrier", "Timed out waiting "),
    *("NCCL error", "NCCL communicator ", "nccl", "collective operation timeout", "Operation timed out!"),
    *("Wait timeout", "wait timeout after ", "Timeout waiting for key: ", "Socket Timeout"),
)
"""In messages of gloo, of NCCL, and of the store, which are plain RuntimeErrors in some versions of torch. Those that
tell of wrong arguments have none of them (``ProcessGroupGloo::...``, ``... NCCL built in``), nor
has ``DataLoader timed out``."""


_LOST: Final = ("Connection closed by peer", "Connection reset by peer")
"""In gloo's messages, where the end of a peer has closed the connection to it."""
STOP_SIGNALS: Final = frozenset({SIGHUP, SIGINT, SIGTERM})
"""Signals with which launchers and users end a rank that is not at fault (torchrun sends SIGTERM to its peers)."""
_INTERRUPT: Final = KeyboardInterrupt.__name__
"""What Ctrl-C raises, unless the program handles the signal."""
FROM: Final = " (from "
"""In the text of an exception, before what it was raised from or while (`otel_fr.capture.exceptions`)."""
_NAMES: Final = "|".join(sorted(signal.name for signal in STOP_SIGNALS))
_STOP: Final = re.compile(
    rf"(?:while handling )?(?:{_INTERRUPT}|SignalException|SystemExit: 0|(?:{_NAMES})\b)|[^\n]*\(from {_INTERRUPT}\b"
)
_BY_USER: Final = re.compile(rf"\b(?:{_INTERRUPT}|{SIGINT.name})\b")


def type_name(kind: type[BaseException]) -> str:
    """The type as it is recorded: ``"RuntimeError"``, ``"torch.distributed.DistBackendError"``."""
    name, module = kind.__qualname__, kind.__module__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def is_communication(exception: str) -> bool:
    """An exception that was recorded may be what a failed call of communication raised."""
    kind, _, message = exception.partition(": ")
    if kind != "RuntimeError" and hasattr(builtins, kind):
        return False
    return kind.startswith(_OF_TORCH) or any(word in message for word in _WORDS)


def tells_of_lost_peer(exception: str) -> bool:
    """An exception that was recorded comes from the end of a peer, not from a timeout."""
    return is_communication(exception) and any(text in exception for text in _LOST)


def is_of_communication(error: BaseException) -> bool:
    """`is_communication` of an exception object, whose base classes are known."""
    kinds = [type_name(kind) for kind in type(error).__mro__ if issubclass(kind, BaseException)]
    return any(
        is_communication(f"{kind}: {error}") for kind in kinds if kind == "RuntimeError" or kind.startswith(_OF_TORCH)
    )


def tells_of_stop(text: str) -> bool:
    """An exception, or a message of ``sys.exit``, comes from Ctrl-C or a launcher's signal, maybe by way of another."""
    return bool(_STOP.match(text))


def tells_of_user(text: str) -> bool:
    """What `tells_of_stop` says yes to comes from Ctrl-C."""
    return bool(_BY_USER.search(text))
