"""After PyTorch's watchdog has ended a job, its files and otel-fr's name the same rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.faults import FAULTS, is_right, observe
from tests.gpu.hardware import Hardware
from tests.support import torchrun

pytestmark = torchrun.needed

TIMEOUT = 12.0
"""Seconds of PyTorch's timeout: longer than otel-fr needs for its evidence."""


@pytest.mark.long
@pytest.mark.parametrize("name", ["missing", "subgroup", "send", "operation"])
def test_files_of_the_watchdog_and_ours_name_the_same_rank(
    hardware: Hardware, name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if not hardware.gpus:
        pytest.skip("gloo has no watchdog that writes files")
    fault = FAULTS[name]
    found = observe(hardware, fault, tmp_path / "job", watchdog=TIMEOUT)
    record_property("files of the watchdog", ", ".join(sorted(path.name for path in tmp_path.glob("job/torch/*"))))
    culprits = [list(said[1]) for said in fault.said]
    # A send that creates its communicator waits there before PyTorch's recorder sees it: the files cannot show it.
    assert found.torch is not None
    for said in (found.live, found.after, found.after if name == "send" else found.torch):
        assert said is not None
        assert [one["culprit_ranks"] for one in said] in [[ranks] for ranks in culprits], said
    assert is_right(found.live, fault.said), found.live
