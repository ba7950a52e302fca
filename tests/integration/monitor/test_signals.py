"""Signals to a rank's process reach it while it lives, and no other process later. Also signals to its monitor."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from otel_fr.monitor.process.ending import RankProcess
from otel_fr.ring import process_start_ns, process_state
from tests.support.monitored_rank import play
from tests.support.waiting import wait_for


def test_a_signal_reaches_the_process_until_it_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = RankProcess(child.pid, process_start_ns(child.pid) or 0)
    assert process.send_signal(signal.SIGTERM)
    assert process.fd is not None
    select.select([process.fd], [], [])
    assert not process.send_signal(signal.SIGKILL), "a zombie"
    assert child.wait() == -signal.SIGTERM
    assert not process.send_signal(signal.SIGKILL), "its parent has waited for it"
    process.close()
    assert not process.send_signal(signal.SIGKILL)


def test_another_process_of_the_same_number_is_never_hit() -> None:
    own = process_start_ns(os.getpid())
    assert own is not None
    process = RankProcess(os.getpid(), own + 10**9)
    assert not process.send_signal(signal.SIGKILL)


def test_a_monitor_that_is_stopped_stays_so_while_its_rank_lives_and_ends_after_it(tmp_path: Path) -> None:
    def is_stopped() -> bool:
        found = process_state(rank.monitor)
        return found is not None and found.letter == "T"

    with play(tmp_path, {}) as rank:
        rank.do("say_bye")  # so the monitor runs
        os.kill(rank.monitor, signal.SIGSTOP)
        assert wait_for(is_stopped)
        rank.do("issue", n=10)
        assert is_stopped()
        rank.end("die", number=9)
        rank.monitor_end()
        assert (tmp_path / "dumps" / "otel_fr_rank_0").exists()
