"""An incident's text, for tests that search it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any


def whole_text(incident: Mapping[str, Any]) -> str:
    """Return the summary and the details, without this machine's name, since all ranks of a test's job run here."""
    text = "; ".join([incident["summary"], *incident["details"]])
    return text.replace(f" ({socket.gethostname()})", "")
