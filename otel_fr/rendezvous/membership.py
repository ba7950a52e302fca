"""Informs the monitors of this node, with a file, if an agent ends its ranks because nodes join. This is no fault."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from otel_fr.config import NODES_CHANGED_VARIABLE

ONLY: Final = "only"
"""Content of the file if no node has left: the ranks of this node then end only because nodes join."""


class Membership:
    """The nodes of the running attempt, and the nodes that want to join.

    Args:
        inner: c10d's handler. Its state is private. If it is missing, nothing is known.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._nodes: Collection[object] = ()
        self._folder: Path | None = None
        self._round = 0

    def begin(self) -> None:
        """Begin an attempt. Its ranks are started after this."""
        os.environ.pop(NODES_CHANGED_VARIABLE, None)
        with contextlib.suppress(AttributeError, OSError):
            self._nodes = frozenset(self._inner._state_holder.state.participants)
            self._folder = self._folder or Path(tempfile.mkdtemp(prefix="otel-fr-agent-"))
            self._round += 1
            os.environ[NODES_CHANGED_VARIABLE] = str(self._folder / str(self._round))

    def look(self) -> bool:
        """Return True if new nodes wait, and all nodes of the attempt are present or wait, too. Inform the monitors."""
        with contextlib.suppress(AttributeError, OSError):
            state = self._inner._state_holder.state
            waiting, left = set(state.wait_list), set(self._nodes) - set(state.participants)
            if not self._nodes or waiting <= set(self._nodes) or not left <= waiting:
                return False
            path = Path(os.environ.get(NODES_CHANGED_VARIABLE, ""))
            if path.parent == self._folder and not path.exists():
                path.write_text("" if left else ONLY)
            return True
        return False

    def close(self) -> None:
        """Remove the files, because the agent ends."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
