"""Skips that count as failures in continuous integration (``OTEL_FR_TEST_REQUIRE=1``), because the missing program can
be installed."""

from __future__ import annotations

import os
import re

REQUIRED = os.environ.get("OTEL_FR_TEST_REQUIRE") == "1"
MISSING = [name.removeprefix("prometheus-") for name in os.environ.get("OTEL_FR_TEST_MISSING", "").split()]
"""Packages that could not be installed. The reason of a skip names the package, or the program in it."""

ACCEPTED = re.compile(
    # Programs that are neither on PyPI nor in Debian.
    r"no OpenTelemetry Collector here|no headers_setter|no Jaeger here"
    # Features that the tests' version of torch does not have.
    r"|torch (before \d|has no )|from torch \d\.\d+ on|this torch|needs torch \d"
    # Actions that a container or its kernel may forbid.
    r"|root may write anywhere|this kernel does not report|no cgroup with a memory limit|cannot mount "
    r"|refuses to run as root|no hosts of our own here"
    # Hardware.
    r"|no GPU|only one GPU"
)
"""Reasons for which a test may be skipped in continuous integration, too."""


def failure(reason: object) -> str:
    """Return why a skip is a failure; "": it is none. ``reason``: pytest's ``longrepr`` of the skip."""
    text = str(reason[2] if isinstance(reason, tuple) else reason)
    if not REQUIRED or ACCEPTED.search(text) or any(re.search(rf"\b{re.escape(name)}\b", text) for name in MISSING):
        return ""
    return f"skipped, with OTEL_FR_TEST_REQUIRE=1: {text}. Install it, or name the reason in tests/support/required.py"
