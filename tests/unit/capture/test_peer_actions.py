"""How a rank ends that must end because a peer has failed."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from otel_fr.capture import peer_actions
from otel_fr.fault_tolerance.peers import EXIT_CODE


def test_output_that_nobody_reads_does_not_keep_a_rank_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    released, statuses = threading.Event(), list[int]()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=released.wait))
    monkeypatch.setattr(os, "_exit", statuses.append)
    monkeypatch.setattr(peer_actions, "_FLUSH_SECONDS", 0.0)
    actions: Any = peer_actions.PeerActions.__new__(peer_actions.PeerActions)
    actions._grace = 0.0
    ending = threading.Thread(target=actions._exit_later, daemon=True)
    ending.start()
    ending.join(10.0)
    released.set()
    assert statuses == [EXIT_CODE]
