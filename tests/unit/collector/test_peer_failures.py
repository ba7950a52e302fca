"""Which ranks count as failed, and which monitors are told, by a clock of the test's own."""

from __future__ import annotations

from signal import SIGTERM
from typing import Any

import pytest
from otel_fr_collector import timeline
from otel_fr_collector.control import Control
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.return_grace import ReturnGrace
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.peer_failures import MAX_COMMANDS, PeerFailures

from otel_fr.control.v1.control_pb2 import Command, WatchRequest
from otel_fr.match import CallState, Category, Ending, Group, Place
from tests.support.evidence import NO_CALL, finding
from tests.support.told import apply, run_in
from tests.unit.collector.test_state import rank_call

RUN = RunId("job", 0, "r")
TIMEOUT = 5.0


class Job:
    """A run whose ranks report when told to; one monitor watches."""

    def __init__(self, world: int = 4, hosts: int = 1) -> None:
        self.now = 0.0
        self.runs, self.control, self.book = Runs(), Control(), IncidentBook(lambda: self.now)
        grace = ReturnGrace(-timeline.RETURN_SECONDS - 1.0)
        self.failures = PeerFailures(self.runs, self.book, self.control, grace, lambda: self.now)
        self.run: Run = run_in(self.runs)
        self.run.group_state(Group("g", "0", "default_pg", tuple(range(world))), world)
        for rank in range(world):
            place = Place(f"node{rank * hosts // world}")
            self.run.note_origin(rank, place=place, world_size=world, resource={}, now=0.0)
        self.context = self.control.watch(WatchRequest(job_id="job", run_id="r", rank=0))
        self.watcher = self.context.__enter__()
        self.numbers = 0
        self.reported = 0.0
        self.report(*range(world))

    def report(
        self, *ranks: int, waiting_since: float | None = None, running_here: str = "", unreached: tuple[str, ...] = ()
    ) -> None:
        """These ranks report now, and have done so each second since any did."""
        for at in [*range(int(self.reported) + 1, int(self.now)), self.now]:
            self.numbers += 1
            for rank in ranks:
                waits = []
                if waiting_since is not None and at >= waiting_since:
                    waits = [rank_call(rank, 1, CallState.IN_FLIGHT)._replace(enqueued_at=waiting_since)]
                said: dict[str, Any] = {"running_here": running_here, "unreached": unreached}
                apply(self.run, rank, self.numbers, at, inflight=waits, **said)
        self.reported = self.now

    def at(self, now: float) -> list[Command]:
        """The commands that are sent at that time."""
        self.now = now
        self.failures.step(now)
        found = []
        while not self.watcher._commands.empty():
            found.append(Command.FromString(self.watcher._commands.get_nowait() or b""))
        return found

    def end(self, rank: int, ending: Ending = Ending.KILLED, signal: int = 9) -> None:
        state = self.run.ranks[rank]
        state.ended, state.ending, state.signal = self.now, ending, signal


def told(commands: list[Command]) -> list[tuple[list[int], str]]:
    return [(list(c.peer_failed.ranks), c.peer_failed.kind) for c in commands if c.HasField("peer_failed")]


def test_a_killed_rank_is_told_once_and_to_monitors_that_connect_later() -> None:
    job = Job()
    assert job.at(1.0) == []
    job.end(2)
    (command,) = job.at(2.0)
    assert told([command]) == [([2], "ended")]
    assert command.peer_failed.reason == "rank 2 (node0) was killed by signal 9 (SIGKILL)"
    assert job.at(3.0) == []
    with job.control.watch(WatchRequest(job_id="job", run_id="r", rank=3)) as late:
        assert list(Command.FromString(late._commands.get_nowait() or b"").peer_failed.ranks) == [2]


@pytest.mark.parametrize("by_signal", [True, False])
def test_ranks_that_the_launcher_stops_are_told_of_together_with_what_was_before(by_signal: bool) -> None:
    job = Job()
    job.now = 1.0
    job.end(2)
    job.now = 2.0  # the launcher reacts
    for rank in (0, 1, 3):
        job.end(rank, *((Ending.KILLED, SIGTERM) if by_signal else (Ending.RAISED, 0)))
        job.run.ranks[rank].exception = "" if by_signal else f"SignalException: Process {rank} got signal: 15"
    stopped, died = job.at(3.0)
    assert told([stopped, died]) == [([0, 1, 3], "ended"), ([2], "ended")]
    assert "rank 2" in stopped.peer_failed.reason


def test_a_rank_that_was_stopped_first_follows_no_other() -> None:
    job = Job()
    job.now = 1.0
    job.end(1, signal=SIGTERM)
    job.now = 2.0
    job.end(2)
    reasons = {c.peer_failed.ranks[0]: c.peer_failed.reason for c in job.at(3.0)}
    assert "rank 2" not in reasons[1]


def test_a_rank_that_ended_well_has_not_failed() -> None:
    job = Job()
    job.end(2, Ending.CLEAN, 0)
    assert job.at(1.0) == []


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        (Category.RANK_STUCK, "stuck"),
        (Category.HEARTBEAT_MISSED, "heartbeat_missed"),
        (Category.SECTION_OVERRUN, "section_overrun"),
    ],
)
def test_an_incident_tells_of_a_stuck_rank_until_it_is_resolved_but_not_of_one_that_is_only_missing(
    category: Category, kind: str
) -> None:
    job = Job()
    job.run.ranks[1].python_blocked = category is Category.RANK_STUCK
    stuck = finding(category, **NO_CALL, key="a", summary="rank 1 is; blocked")
    slow = finding(**NO_CALL, key="b", culprit_ranks=(3,), waiting_ranks=(0,))
    job.book.update(job.run, [stuck, slow], now=1.0, wall=1.0, enqueued={}, over=())
    (command,) = job.at(1.0)
    assert told([command]) == [([1], kind)]
    assert command.peer_failed.reason == "rank 1 is"
    job.book.resolve_run(RUN, 2.0)
    (command,) = job.at(2.0)
    assert list(command.peer_recovered.ranks) == [1]


def test_a_rank_that_has_only_not_come_yet_has_not_failed_beside_one_that_is_stuck() -> None:
    job = Job()
    job.run.ranks[1].python_blocked = True
    missing = finding(Category.RANK_STUCK, **NO_CALL, culprit_ranks=(1, 2), waiting_ranks=(0,))
    job.book.update(job.run, [missing], now=1.0, wall=1.0, enqueued={}, over=())
    assert told(job.at(1.0)) == [([1], "stuck")]
    job.run.ranks[2].python_blocked = True
    assert told(job.at(2.0)) == [([2], "stuck")]


def at_ten(world: int = 4, hosts: int = 1, **said: Any) -> Job:
    """All have reported up to 10 s."""
    job = Job(world, hosts)
    job.now = 10.0
    job.report(*range(world), **said)
    return job


def silent(
    hosts: int, quiet: tuple[int, ...], world: int = 8, unreached: tuple[str, ...] = ()
) -> list[tuple[list[int], str]]:
    """What is told when these ranks fall silent at 10 s, while the others wait from then on.

    Args:
        unreached: as the others report.
    """
    job = at_ten(world, hosts)
    others = [rank for rank in range(world) if rank not in quiet]
    found = []
    for second in range(11, 20):
        job.now = float(second)
        job.report(*others, waiting_since=10.0, unreached=unreached)
        found += told(job.at(float(second)))
    return found


@pytest.mark.parametrize(
    ("hosts", "quiet", "unreached", "is_told"),
    [
        pytest.param(1, (5,), (), True, id="a rank"),
        pytest.param(4, (2, 3), (), True, id="one node of four"),
        *(
            pytest.param(hosts, (0, 1, 2, 3), (), False, id=f"half of {hosts}: a collector cut off")
            for hosts in (1, 2, 4)
        ),
        pytest.param(2, (0, 1, 2, 3), ("10.0.0.1:41234",), True, id="half that the others do not reach either"),
    ],
)
def test_ranks_that_are_not_heard_of_while_others_wait_for_them_have_failed(
    hosts: int, quiet: tuple[int, ...], unreached: tuple[str, ...], is_told: bool
) -> None:
    assert silent(hosts, quiet, unreached=unreached) == ([(list(quiet), "silent")] if is_told else [])


@pytest.mark.parametrize(
    ("seen", "failed"),
    [("0-3", []), ("0-2", [3]), ("", [3]), ("not a list", [3]), ("0-9999999", [3])],
)
def test_a_rank_whose_process_another_monitor_sees_run_has_not_failed(seen: str, failed: list[int]) -> None:
    """Only its own monitor is silent: stopped, or cut off."""
    job = at_ten()
    job.now = 16.0
    job.report(0, 1, 2, waiting_since=10.0, running_here=seen)
    assert [ranks for ranks, _ in told(job.at(16.0))] == ([failed] if failed else [])


def test_what_a_monitor_saw_before_it_fell_silent_itself_does_not_count() -> None:
    job = at_ten(8, 4, running_here="0-7")
    job.now = 16.0
    job.report(*range(2, 8), waiting_since=10.0, running_here="2-7")
    assert told(job.at(16.0)) == [([0, 1], "silent")]


def test_what_a_monitor_saw_before_its_rank_ended_does_not_count() -> None:
    """The peers of a lost node waited on if one of its ranks had ended before."""
    job = at_ten(8, 4, running_here="0-7")
    job.end(0, Ending.CLEAN, 0)
    job.now = 16.0
    job.report(*range(2, 8), waiting_since=10.0, running_here="2-7")
    assert told(job.at(16.0)) == [([1], "silent")]


def test_a_silent_rank_that_nobody_waits_for_has_not_failed() -> None:
    job = at_ten()
    for second in range(11, 30):
        job.now = float(second)
        job.report(0, 1, 2)
        assert job.at(float(second)) == []


def test_a_silent_rank_that_reports_again_has_recovered() -> None:
    job = at_ten()
    job.now = 16.0
    job.report(0, 1, 2, waiting_since=10.0)
    assert told(job.at(16.0)) == [([3], "silent")]
    job.now = 17.0
    job.report(3)
    (command,) = job.at(17.0)
    assert list(command.peer_recovered.ranks) == [3]


def test_a_silent_rank_has_not_recovered_because_the_collector_is_behind() -> None:
    job = at_ten()
    job.now = 16.0
    job.report(0, 1, 2, waiting_since=10.0)
    assert told(job.at(16.0)) == [([3], "silent")]
    job.run.attention.waiting = lambda: 8.0
    assert job.at(17.0) == []
    job.run.attention.waiting = lambda: 0.0
    assert job.at(18.0) == []
    job.run.attention.step(8.0, 19.0)  # it was blocked: no silence counts before now
    assert job.at(19.5) == []


def test_a_collector_that_has_just_started_takes_no_silence_for_a_failure() -> None:
    job = Job()
    job.run.attention.step(10.0, 20.0)
    job.now = 22.0
    job.report(0, 1, 2, waiting_since=1.0)
    assert job.at(22.0) == []


def test_thousands_of_failures_for_reasons_of_their_own_take_few_commands() -> None:
    job = Job(2_000)
    for rank in range(1, 2_000):
        job.end(rank)
    commands = job.at(1.0)
    assert len(commands) <= MAX_COMMANDS
    assert sorted(rank for ranks, _ in told(commands) for rank in ranks) == list(range(1, 2_000))
