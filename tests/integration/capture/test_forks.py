"""Children that a rank forks. They record nothing, and do not wait for the parent's threads."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.engines import needs_ring_writer
from tests.support.waiting import wait_for
from tests.unit.capture.test_native_recorder import Rig


@needs_ring_writer
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_never_waits_for_a_thread_that_it_does_not_have(tmp_path: Path) -> None:
    """A child that ends normally frees the recorder. Another thread may have held its lock at the fork."""
    rig = Rig(tmp_path)
    with rig.calling():
        for _ in range(20):
            child = os.fork()
            if not child:
                rig.close()
                os._exit(0)
            ended = wait_for(lambda pid=child: os.waitpid(pid, os.WNOHANG)[0])  # type: ignore[misc]
            if not ended:
                os.kill(child, signal.SIGKILL)
            assert ended == child
        head = rig.writer.head
        assert wait_for(lambda: rig.writer.head > head), "the parent records on"
    rig.close()
