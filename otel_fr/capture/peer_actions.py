"""Acts when the monitor says that a peer has failed: runs callbacks, and does what OTEL_FR_ON_PEER_FAILURE says.

The monitor decides when calls must end (`otel_fr.monitor.control.peers`). This module ends them. The error that
the training thread then gets names the failure.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any, Final

from otel_fr.capture.groups import backends_of
from otel_fr.capture.replaced import Attribute, Replacements
from otel_fr.capture.waits import Waits
from otel_fr.communication_errors import is_of_communication
from otel_fr.config import Config
from otel_fr.fault_tolerance.gloo_connections import GlooConnections
from otel_fr.fault_tolerance.peers import EXIT_CODE, PeerFailedError, PeerFailure, Peers
from otel_fr.identity import decode_ranks

_log = logging.getLogger("otel_fr")

IGNORE: Final = "ignore"
EXIT: Final = "exit"
_FLUSH_SECONDS: Final = 1.0
"""Longest wait for the output of a rank that is ended."""


class PeerActions:
    """Handles the monitor's messages about peers. A recording has one instance.

    Args:
        connections: connections of the process groups.
        find_group: returns torch's ``ProcessGroup`` of a c10d name, or None if it no longer exists.
    """

    def __init__(
        self,
        c10d: ModuleType,
        torch: Any,
        config: Config,
        peers: Peers,
        connections: GlooConnections,
        find_group: Callable[[str], Any],
        waits: Waits,
        replaced: Replacements,
    ) -> None:
        self._c10d = c10d
        self._mode = config.on_peer_failure
        self._grace = config.exit_grace
        self._peers = peers
        self._connections = connections
        self._find_group = find_group
        self._replaced = replaced
        self._is_exiting = False
        self._has_excepthook = False
        if self._mode != IGNORE:
            waits.explain_by(self._explanation)
            replaced.put(Attribute.BACKWARD, torch.autograd, self._backward)

    # ---- messages of the monitor, on the thread that receives them

    def handle(self, message: dict[str, Any]) -> None:
        """Handle a message of the monitor, if it is about peers."""
        command = message.get("cmd")
        if command == "peer_failed":
            self._peers.deliver(_failure(message))
        elif command == "peer_recovered":
            self._peers.withdraw(_ranks(message))
        elif command == "end_calls" and self._mode != IGNORE:
            self._end_calls(_failure(message), [str(name) for name in message.get("names") or ()])

    def _end_calls(self, failure: PeerFailure, names: list[str]) -> None:
        # Before the first call ends: this explains the error that the call then raises.
        self._peers.note_ended(dict.fromkeys(names, failure))
        if not self._has_excepthook:
            self._has_excepthook = self._replaced.put(Attribute.OUTERMOST_EXCEPTHOOK, sys, self._excepthook)
        exits = self._mode == EXIT or any(map(self._ends_silently, names))
        unknown = [name for name in names if not self._connections.shut_down(name)]
        if exits and not self._is_exiting:
            self._is_exiting = True
            try:
                threading.Thread(target=self._exit_later, name="otel-fr-exit", daemon=True).start()
            except RuntimeError:  # no thread can be started, and this one has nothing else to do any more
                self._exit_later()
        # Last, because this waits for whoever reads the output.
        _log.warning(
            "otel-fr: %s; %s (OTEL_FR_ON_PEER_FAILURE=%s)",
            failure.reason,
            "this rank exits" if exits else f"ending the calls pending in {', '.join(failure.process_groups)}",
            self._mode,
        )
        if not exits:
            for name in unknown:
                _log.warning("otel-fr: cannot end the calls of group %s: its connections are unknown", name)

    def _ends_silently(self, name: str) -> bool:
        """Return True if no error can be raised in this group's calls, because one of its backends is not gloo.

        ``ProcessGroup.abort()`` ends NCCL's kernels. Code that waits for the device then continues with whatever is in
        device memory, as if the call had succeeded (seen with torch 2.14.1). So the process must end instead.
        """
        with contextlib.suppress(Exception):
            group = self._find_group(name)
            return group is not None and backends_of(self._c10d, group) != {"gloo"}
        return False

    def _exit_later(self) -> None:
        """End the process if the main thread has not: that thread may catch the error, or wait somewhere else."""
        time.sleep(self._grace)
        # In a thread of its own: a flush waits for whoever reads the output, and for a thread that is writing.
        flushing = threading.Thread(target=_flush, name="otel-fr-flush", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be started
            flushing.start()
            flushing.join(_FLUSH_SECONDS)
        os._exit(EXIT_CODE)

    # ---- the errors that this raises

    def _explanation(self, error: Exception) -> PeerFailedError | None:
        """Return the error that replaces an error of ``Work.wait``, or None."""
        failure = self._peers.ended_by
        if failure is None or isinstance(error, PeerFailedError) or not is_of_communication(error):
            return None
        return PeerFailedError(failure)

    def _backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Explain errors of the backward pass, in which DDP's reducer waits for its calls."""
        peers = self._peers

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            try:
                return run(*args, **kwargs)
            except Exception as error:
                peers.explain(error)
                raise

        return run_backward

    def _excepthook(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the present outermost hook: torch's hook prints only after the hook below it has returned."""
        main = threading.main_thread()

        def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> Any:
            is_explained = self._peers.explain(value)
            result = before(kind, value, trace)
            if is_explained and self._mode == EXIT and threading.current_thread() is main:
                raise SystemExit(EXIT_CODE)  # the interpreter handles it like the program's own (pythonrun.c)
            return result

        return excepthook


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _failure(message: dict[str, Any]) -> PeerFailure:
    return PeerFailure(
        ranks=_ranks(message),
        reason=str(message.get("reason") or "a peer has failed"),
        process_groups=tuple(str(group) for group in message.get("groups") or ()),
        incident_id=str(message.get("incident") or ""),
        kind=str(message.get("kind") or ""),
    )


def _ranks(message: dict[str, Any]) -> tuple[int, ...]:
    with contextlib.suppress(ValueError):
        return tuple(decode_ranks(str(message.get("ranks") or "")))
    return ()
