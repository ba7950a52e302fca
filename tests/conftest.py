"""No test reads the caller's OpenTelemetry settings."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell ignores SIGINT in what it runs in the background, and that is inherited: Ctrl-C is to reach what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OTEL_", "TORCH_FR", "TORCH_NCCL", "TORCHCOMM")):
            monkeypatch.delenv(name)
