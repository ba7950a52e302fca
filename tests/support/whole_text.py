"""The text of an incident, for tests that look for a part of it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any


def whole_text(incident: Mapping[str, Any]) -> str:
    """The summary and the details, without the name of this machine, on which all ranks of a test's job run."""
    text = "; ".join([incident["summary"], *incident["details"]])
    return text.replace(f" ({socket.gethostname()})", "")
