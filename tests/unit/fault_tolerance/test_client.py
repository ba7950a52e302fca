"""`RankMonitorClient`: the calls of nvidia-resiliency-ext, and the timeouts that it computes."""

from __future__ import annotations

import json

import pytest

from otel_fr.fault_tolerance import (
    RankMonitorClient,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
    sections,
)
from otel_fr.fault_tolerance.timeouts import (
    LEAST_TIMEOUT,
    HeartbeatTimeouts,
    Observed,
    SectionTimeouts,
    heartbeat_timeouts,
    section_timeouts,
)
from otel_fr.ring import ActivityReader


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_its_calls_reach_the_ring(reader: ActivityReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_FR_SECTION_TIMEOUTS", "step:7,broken,x:-1")
    monkeypatch.setenv("OTEL_FR_FIRST_HEARTBEAT_TIMEOUT", "60")
    monkeypatch.setenv("OTEL_FR_OUTSIDE_TIMEOUT", "90")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    beats = reader.beats()
    assert (beats.first_limit_ms, beats.limit_ms, beats.outside_limit_ms) == (60_000, 0, 90_000)
    assert beats.since_ns > 0
    client.send_heartbeat()
    client.start_section("setup")
    client.start_section("step")
    assert [(one.name, one.timeout_ms) for one in reader.open_sections()] == [("setup", 0), ("step", 7000)]
    client.end_section("setup")
    assert [one.name for one in reader.open_sections()] == ["step"]
    client.end_all_sections()
    assert reader.open_sections() == []
    assert reader.beats().count == 1
    client.start_section("step")
    client.shutdown_workload_monitoring()
    client.shutdown_workload_monitoring()
    assert reader.open_sections() == []
    assert reader.beats().last_ns == reader.beats().outside_limit_ms == 0
    client.init_workload_monitoring()
    assert reader.beats().first_limit_ms == 60_000


def test_wrong_calls_raise_as_those_that_it_replaces(reader: ActivityReader) -> None:
    client = RankMonitorClient()
    for call in (client.send_heartbeat, client.end_all_sections, client.calculate_and_set_hb_timeouts):
        with pytest.raises(RankMonitorClientError, match="not initialized"):
            call()
    client.init_workload_monitoring()
    with pytest.raises(RankMonitorClientError, match="already initialized"):
        client.init_workload_monitoring()
    client.start_section("a")
    with pytest.raises(RankMonitorClientError, match="already open"):
        client.start_section("a")
    with pytest.raises(RankMonitorClientError, match="not open"):
        client.end_section("b")
    with pytest.raises(RankMonitorClientError, match="Not enough data"):
        client.calculate_and_set_hb_timeouts()
    with pytest.raises(RankMonitorClientError, match="Not enough data"):
        client.calculate_and_set_section_timeouts(["never seen"])
    assert not client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)
    assert not client.calculate_and_set_section_timeouts(["never seen"], skip_if_not_ready=True)
    client.end_all_sections()


def test_timeouts_are_computed_told_kept_and_loaded(reader: ActivityReader) -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    clock = Clock()
    client._observed = Observed(clock)
    for _ in range(3):
        clock.now += 2.0
        client.send_heartbeat()
        client.start_section("step")
        clock.now += 4.0
        client.end_section("step")
    assert client.calculate_and_set_hb_timeouts()
    assert client.calculate_and_set_section_timeouts()
    assert (client.hb_timeouts.initial, client.hb_timeouts.subsequent) == (10.0, 30.0)
    assert client.section_timeouts.section == {"step": 20.0}
    assert client.section_timeouts.out_of_section == 10.0
    assert client.section_timeouts.were_calculated
    beats = reader.beats()
    assert (beats.limit_ms, beats.first_limit_ms, beats.outside_limit_ms) == (30_000, 10_000, 10_000)
    client.start_section("step")
    assert reader.open_sections()[0].timeout_ms == 20_000
    client.end_all_sections()

    state = json.loads(json.dumps(client.state_dict()))
    assert set(state["current_timeouts"]) == {"heartbeat", "section"}
    other = RankMonitorClient()
    other.load_state_dict(state)
    assert json.loads(json.dumps(other.state_dict())) == state  # a checkpoint may be written before the first step
    other.init_workload_monitoring()
    assert other.hb_timeouts == client.hb_timeouts
    assert other.section_timeouts == client.section_timeouts
    third = RankMonitorClient()
    third.init_workload_monitoring()
    third.load_state_dict(state)
    assert third.section_timeouts.section == {"step": 20.0}
    assert RankMonitorClient().state_dict() == {"current_timeouts": {}}


@pytest.mark.parametrize(("seconds", "limit_ms"), [(float("inf"), 0), (1e300, 0), (0.0004, 1)])
def test_loaded_timeouts_of_any_size_are_limits_or_none(reader: ActivityReader, seconds: float, limit_ms: int) -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.load_state_dict({"current_timeouts": {"heartbeat": {"initial": seconds, "subsequent": seconds}}})
    assert (reader.beats().limit_ms, reader.beats().first_limit_ms) == (limit_ms, limit_ms)


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("seconds", [float("nan"), -1.0])
def test_a_loaded_timeout_that_is_no_time_is_refused(seconds: float) -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    with pytest.raises(ValueError, match="a limit must be a number of seconds, not"):
        client.load_state_dict({"current_timeouts": {"heartbeat": {"initial": None, "subsequent": seconds}}})


def test_computed_timeouts_move_half_of_the_way_and_given_ones_are_replaced() -> None:
    clock = Clock()
    observed = Observed(clock)
    for seconds in (1.0, 2.0):
        clock.now += seconds
        observed.note_heartbeat()
    given = HeartbeatTimeouts(100.0, 100.0, were_calculated=False)
    first = heartbeat_timeouts(observed, 5.0, given)
    assert first == HeartbeatTimeouts(5.0, 10.0, were_calculated=True)
    assert heartbeat_timeouts(observed, 5.0, HeartbeatTimeouts(15.0, 30.0, were_calculated=True)) == HeartbeatTimeouts(
        10.0, 20.0, were_calculated=True
    )
    observed.note_start("a")
    clock.now += 3.0
    observed.note_end("a")
    current = SectionTimeouts({"a": 100.0, "b": 9.0}, 50.0)
    found = section_timeouts(observed, 2.0, current, ["a"], with_outside=False)
    assert found == SectionTimeouts({"a": 6.0, "b": 9.0}, 50.0, {"a"})
    assert section_timeouts(observed, 2.0, current, None, with_outside=True) is None
    again = section_timeouts(observed, 2.0, SectionTimeouts({"a": 10.0}, None, {"a"}), ["a"], with_outside=False)
    assert again is not None
    assert again.section == {"a": 8.0}


def test_a_quick_start_makes_no_timeout_that_the_next_start_misses() -> None:
    clock = Clock()
    observed = Observed(clock)
    for seconds in (0.00002, 0.001):
        clock.now += seconds
        observed.note_heartbeat()
    observed.note_start("a")
    clock.now += 0.01
    observed.note_end("a")
    least = HeartbeatTimeouts(LEAST_TIMEOUT, LEAST_TIMEOUT, were_calculated=True)
    assert heartbeat_timeouts(observed, 5.0, HeartbeatTimeouts()) == least
    # one of a checkpoint of nvidia-resiliency-ext, which has no such bound
    assert heartbeat_timeouts(observed, 5.0, HeartbeatTimeouts(0.0001, 0.005, were_calculated=True)) == least
    found = section_timeouts(observed, 5.0, SectionTimeouts(), None, with_outside=True)
    assert found is not None
    assert (found.section, found.out_of_section) == ({"a": LEAST_TIMEOUT}, LEAST_TIMEOUT)


def test_the_longest_times_of_all_ranks_count() -> None:
    clock = Clock()
    observed = Observed(clock)
    observed.note_start("a")
    clock.now += 1.0
    observed.note_end("a")
    observed.merge([{"first": 3.0, "between": 4.0, "outside": 5.0, "sections": {"a": 0.5, "b": 6.0}}])
    assert observed.times() == {"first": 3.0, "between": 4.0, "outside": 5.0, "sections": {"a": 1.0, "b": 6.0}}


def test_a_request_goes_to_the_monitor(reader: ActivityReader) -> None:
    client = RankMonitorClient()
    request = WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "bad GPU")
    with pytest.raises(RuntimeError, match="has no monitor"):
        client.send_workload_control_request(request)
    sent: list[object] = []

    def send(message: dict[str, object]) -> bool:
        sent.append(message)
        return True

    sections.set_link(send)
    client.send_workload_control_request(request)
    assert sent == [{"cmd": "workload_control", "action": "exclude_node", "description": "bad GPU"}]
