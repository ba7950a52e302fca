"""A collector that sends commands without end. The monitor's CPU time and memory stay bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.control.v1.control_pb2 import Command, FetchCalls, PeerFailed, Report
from otel_fr.monitor.commands import FETCH_SECONDS
from otel_fr.monitor.control.client import COMMANDS_AT_ONCE
from otel_fr.monitor.control.pace import Pace
from tests.integration.monitor.test_sampling import GROUP
from tests.support.monitored_rank import Played, play
from tests.support.otlp_sink import grpc_sink

FLOOD = 3_000


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def flooded(folder: Path, command: Command, *, reports: int = 4, records: int = 10) -> tuple[Played, float, int, int]:
    """Flood a monitor until it has sent ``reports`` more reports. Return it, its CPU time, its memory, and answers."""
    with grpc_sink(control=True) as sink:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "OTEL_TRACES_SAMPLER": "always_off", "CAPACITY": "20000"}
        with play(folder, env) as rank:
            sink.wait(lambda: sink.watchers, what="the monitor listens")
            rank.do("issue", n=records)
            before = cpu_seconds(rank.monitor)
            for _ in range(FLOOD):
                sink.commands.put(command)
            known = len(sink.named("torch.rank.progress"))
            sink.events_named("torch.rank.progress", known + reports)
            spent, memory = cpu_seconds(rank.monitor) - before, resident(rank.monitor)
            answers = len(sink.named("torch.rank.calls"))
            rank.end("leave", clean=True)
            return rank, spent, memory, answers


def test_questions_for_calls_take_little_of_a_processor(tmp_path: Path) -> None:
    wanted = Command(fetch_calls=FetchCalls(group_id=GROUP, first=1, last=19_000))
    _, spent, _, answers = flooded(tmp_path, wanted, records=19_000)
    assert answers > 0
    assert spent < FETCH_SECONDS + 2.5


def test_large_commands_fill_no_memory(tmp_path: Path) -> None:
    told = PeerFailed(incident_id="i", ranks=range(10_000), reason="x" * 400_000, kind="ended")
    command = Command(peer_failed=told)
    _, _, memory, _ = flooded(tmp_path, command, reports=3)
    assert memory < FLOOD * command.ByteSize() / 4  # gRPC's buffers and the allocator take some 150 MB


@pytest.mark.long
def test_commands_are_carried_out_at_a_bounded_rate(tmp_path: Path) -> None:
    with grpc_sink(control=True) as sink, play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address}) as rank:
        sink.wait(lambda: sink.watchers, what="the monitor listens")
        for _ in range(FLOOD):
            sink.commands.put(Command(report=Report()))
        first = sink.events_named("torch.rank.progress", int(COMMANDS_AT_ONCE / 2))
        assert len(first) < FLOOD / 2
        rank.end("leave", clean=True)


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 2.0)), min_size=1, max_size=60),
    st.floats(0.01, 10.0),
    st.floats(0.1, 50.0),
)
def test_no_more_is_spent_than_the_burst_the_rate_and_the_last_piece(
    pieces: list[tuple[float, float]], rate: float, burst: float
) -> None:
    pace, now, spent = Pace(rate, burst, 0.0), 0.0, 0.0
    for pause, amount in pieces:
        now += pause
        if pace.wait(now) == 0:
            pace.spend(amount, now)
            spent += amount
            assert spent <= burst + rate * now + amount + 1e-6
        else:
            later = now + pace.wait(now) + 1e-6
            assert pace.wait(later) < 1e-3, "it fills again"
