"""The benchmark of hang localisation: one real job, and the answers of two tools."""

from __future__ import annotations

import pytest

from benchmarks.localisation.catalogue import catalogue
from benchmarks.localisation.field import observe
from benchmarks.localisation.running import Setting
from benchmarks.localisation.tools.otel_fr import Live
from benchmarks.localisation.tools.watchdog import Watchdog
from tests.support import torchrun

pytestmark = [*torchrun.needed, pytest.mark.long]


def test_a_killed_rank() -> None:
    (killed,) = catalogue(["killed"])
    live, text = observe(killed, Setting("gloo", None), [Live(), Watchdog()])
    assert (live["tool"], live["outcome"], live["ranks"]) == ("otel-fr, live", "right", [2])
    assert 0 < live["seconds"] < 60
    assert (text["tool"], text["outcome"], text["ranks"]) == ("PyTorch's text", "right", [2])
