"""Healthy real jobs on gloo and NCCL: nothing is reported, and if there is a device, its times are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from otel_fr import semconv as names
from tests.gpu.faults import TIMING
from tests.gpu.hardware import Hardware
from tests.support import torchrun
from tests.support.collector_process import Collector
from tests.support.otlp_messages import attributes
from tests.support.otlp_sink import grpc_sink
from tests.support.waiting import until, wait_for

pytestmark = torchrun.needed

KNOWN = 0.9
"""Least share of NCCL calls with a known end, and least share with known times on the device."""
DELAY, DURATION = (f"otel_fr_collective_device_{what}_seconds" for what in ("delay", "duration"))


def total(running: Collector, name: str) -> float:
    """The sum of all series of a metric."""
    return sum(value for _, value in running.samples(name))


def test_nothing_is_said_of_healthy_training_and_times_on_the_device_are_in_spans_and_metrics(
    hardware: Hardware, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Many kinds of calls, DDP and FSDP2."""
    with grpc_sink() as sink, torchrun.collector(tmp_path / "collector", "--forward", sink.address) as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED) | {TIMING: "1"}
        with hardware.started(tmp_path / "job", "train", env) as job:
            result = job.wait()
        assert result.returncode == 0, result.output
        assert running.metric("otel_fr_collector_ranks") == hardware.ranks
        assert running.incidents() == []
        calls = until(lambda: total(running, "otel_fr_collective_calls_total"))
        sink.wait(lambda: len(sink.spans) >= calls)
        found = [attributes(span.attributes) for span in list(sink.spans)]
        collectives = [one for one in found if one.get(names.KIND) == names.KIND_COLLECTIVE]
        timed = [one for one in collectives if names.DEVICE_DURATION in one]
        # A rank's last metrics may come later than its last spans.
        assert wait_for(lambda: total(running, f"{DURATION}_count") >= len(timed))
        on_device = total(running, f"{DURATION}_count")
        delay, duration = total(running, f"{DELAY}_sum"), total(running, f"{DURATION}_sum")
    completed = [one for one in collectives if one[names.STATE] == "completed"]
    assert len(completed) >= KNOWN * len(collectives)
    if hardware.device == "cpu":
        assert (on_device, timed) == (0, [])
        return
    record_property("calls completed", f"{len(completed) / len(collectives):.1%}")
    record_property("with times on the device", f"{len(timed) / len(collectives):.1%}")
    record_property("in the queue, on the device", f"{delay:.2f} s, {duration:.2f} s of {calls:.0f} calls")
    assert len(timed) >= KNOWN * len(collectives)
    assert duration > 0


@pytest.mark.long
def test_collectives_that_a_cuda_graph_replays_are_not_taken_for_a_hang(
    hardware: Hardware, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """On a CPU, which has no graphs, the collective is called as often as it would be replayed."""
    with torchrun.collector(tmp_path / "collector") as running:
        with hardware.started(tmp_path / "job", "graph", torchrun.endpoint(running, torchrun.UNHURRIED)) as job:
            result = job.wait()
        assert result.returncode == 0, result.output
        calls = until(lambda: total(running, "otel_fr_collective_calls_total"))
        record_property("calls recorded", f"{calls:.0f}")
    assert running.incidents() == []


@pytest.mark.long
def test_nothing_is_said_of_stages_that_take_longer_the_later_they_are(hardware: Hardware, tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        with hardware.started(tmp_path / "job", "pipeline", torchrun.endpoint(running, torchrun.UNHURRIED)) as job:
            result = job.wait()
        assert result.returncode == 0, result.output
        assert running.metric("otel_fr_collector_ranks") == hardware.ranks
    assert running.incidents() == []
