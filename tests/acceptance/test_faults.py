"""Real torchrun jobs with one fault each: the live incident, and the same incident from the files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import ProcessGroup

from tests.support import torchrun
from tests.support.long_tests import all_but
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed


@dataclass(frozen=True)
class Case:
    """The incident that a fault of `jobs/faults.py` must cause.

    Attributes:
        site: part of the first culprit's call site. texts: parts of summary and details. more: other values.
    """

    category: str
    culprits: list[int]
    site: str = ""
    texts: tuple[str, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    def check(self, incident: dict[str, Any]) -> None:
        assert (incident["category"], incident["culprit_ranks"]) == (self.category, self.culprits), incident["summary"]
        assert self.site in incident["call_sites"].get(str(self.culprits[0]), "")
        for text in self.texts:
            assert text in whole_text(incident)
        assert {key: incident[key] for key in self.more} == self.more

    def fits(self, incident: dict[str, Any]) -> bool:
        """Return True if `check` passes. Tests wait for this, because later reports may complete an incident."""
        try:
            self.check(incident)
        except AssertionError:
            return False
        return True


CREATED = {"operation": "new_group", "sequence_id": 1, "field": "group"}
IN_A_THREAD = Case("missing_rank", [1], " load_shard", ("reading a pipe",), {"waiting_ranks": [0, 2]})
CASES = {
    "exit_message": Case("rank_dead", [1], "faults.py", ("no samples left on this rank",)),
    "raised_and_exiting": Case("rank_dead", [1], "faults.py", ("ValueError: bad sample 4711",)),
    "shares_group": Case("op_mismatch", [0, 1, 2], texts=("in the main thread and thread saver",)),
    "trains_in_thread": IN_A_THREAD,
    "checkpoints_in_thread": IN_A_THREAD,
    "left_out": Case("missing_rank", [2], more={"operation": "new_group", "sequence_id": 2}),
    "other_order": Case("op_mismatch", [1], texts=("rank 1 has right",), more=CREATED),
    "other_ranks": Case("op_mismatch", [1], texts=("rank 1 has tp (1) (ranks 0, 1)",), more=CREATED),
    "split": Case("deadlock", [0], texts=("split_group number 1",), more={"operation": "all_reduce", "sequence_id": 1}),
    "destroys_early": Case("missing_rank", [1], texts=("destroy_process_group at ",)),
    "stays_away": Case("missing_rank", [1], " idle", more={"operation": "init_process_group", "waiting_ranks": [0, 2]}),
    "turned": Case("missing_rank", [1], " idle", more={"sequence_id": 7}),
    "leaves": Case("missing_rank", [0], " idle", more={"sequence_id": 7}),
}
"""`tests/gpu` has the faults of calls, for the CPU, too."""


@pytest.mark.parametrize("fault", all_but(("exit_message", "left_out", "stays_away", "turned"), CASES))
def test_a_fault_is_named_live_and_from_the_files(fault: str, tmp_path: Path) -> None:
    if fault == "split" and not hasattr(ProcessGroup, "split_group"):
        pytest.skip("this torch's groups have no split_group")
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "faults.py", fault, env=torchrun.endpoint(running))
        running.wait_cause(CASES[fault].fits)
    status, report = job.analyze()
    assert status == 1
    (live,), (offline,) = running.causes(), cause_incidents(report["incidents"])
    for incident in (live, offline):
        CASES[fault].check(incident)
    if fault.endswith("in_thread"):
        waiting, culprit = (" ".join(group["frames"]) for group in live["stack_groups"])
        assert [group["ranks"] for group in live["stack_groups"]] == [[0, 2], [1]]
        assert " train" in waiting
        assert culprit.endswith(" load_shard")


def test_a_rank_that_does_not_join_is_shown_with_its_line_its_stack_and_its_threads_exception(tmp_path: Path) -> None:
    """A missing rank's incident contains the exception of its thread. Such an exception alone blames no rank."""
    case = Case("missing_rank", [1], " idle", ("thread prefetch", "ValueError: bad sample 4711"), {"sequence_id": 2})
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "faults.py", "missing", env=torchrun.endpoint(running))
        running.wait_cause(lambda one: case.fits(one) and "in idle" in one["stacks"].get("1", ""))
    (live,), (offline,) = running.causes(), cause_incidents(job.analyze()[1]["incidents"])
    assert live["id"] == offline["id"]
    for incident in (live, offline):
        case.check(incident)
        assert "metrics" not in whole_text(incident)
    assert "in idle" in live["stacks"]["1"]
    assert live["waiting_ranks"] == [0, 2]
    assert "faults.py" in live["call_sites"]["0"]
    assert live["process_group"]["description"] == "default_pg"
    assert {Path(path).exists() for path in live["flight_recorder_files"].values()} == {True}
    said = job.output
    assert said.count("the collector has opened an incident: ") == said.count("otel-fr: verdict: missing_rank: ") == 1
    assert f"otel-fr analyze {job.dumps}; live: otel-fr incidents show {live['id']}\n" in said


def test_the_abort_of_the_ranks_that_waited_does_not_hide_for_whom(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "faults.py", "watchdog", env=torchrun.endpoint(running))
        # The job has ended, and the monitors still report the ends.
        running.wait_cause(lambda one: all(name in whole_text(one) for name in ("SIGABRT", "SIGTERM")))
    (offline,) = cause_incidents(job.analyze()[1]["incidents"])
    revisions = cause_incidents(running.lines())
    assert job.returncode != 0
    assert {revision["id"] for revision in revisions} == {offline["id"]}
    case = Case("missing_rank", [1], "faults.py", more={"stuck_on": "host"})
    for verdict in (*revisions, offline):
        case.check(verdict)
    waiting = [verdict["waiting_ranks"] for verdict in revisions]
    assert waiting == sorted(waiting, key=len), "no abort hides that a rank waited"
    # One rank's wait may be reported before the other's, and before rank 1's stack.
    for last in (revisions[-1], offline):
        assert last["waiting_ranks"] == [0, 2]
        assert "idle" in last["stacks"]["1"]
        assert "SIGABRT" in whole_text(last)
        assert "SIGTERM" in whole_text(last)


@pytest.mark.long
def test_a_deadlock_that_was_told_first_is_corrected_once_the_creation_is_heard_of(tmp_path: Path) -> None:
    """Spans come late, as from a busy machine. The creations have completed, so no report contains them."""
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "OTEL_BSP_SCHEDULE_DELAY": "7000"}
        job = torchrun.run(tmp_path / "job", "faults.py", "other_ranks", "10", env=env)
        assert wait_for(lambda: [one["category"] for one in running.causes()] == ["op_mismatch"]), job.output
        assert [one["culprit_ranks"] for one in running.causes()] == [[1]]
        told = {one["id"] for one in running.lines() if one["category"] == "deadlock"}
        corrected = [one for one in running.incidents() if one["id"] in told]
        assert all(one["caused_by"] or one["category"] == "op_mismatch" for one in corrected)


HEALTHY = {"calls": (3, "0"), "groups": (3, "1"), "surroundings": (4, "0")}
"""Job of `jobs/healthy.py` -> ranks, and whether torch makes a barrier after each new group."""


@pytest.mark.parametrize("kind", all_but(("calls",), HEALTHY))
def test_a_healthy_job_raises_nothing(kind: str, tmp_path: Path) -> None:
    ranks, barrier = HEALTHY[kind]
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running, torchrun.UNHURRIED), "TORCH_DIST_INIT_BARRIER": barrier}
        job = torchrun.run(tmp_path / "job", "healthy.py", kind, nproc=ranks, env=env)
        # The collector asked no rank for its collectives because of different fingerprints.
        assert {value for _, value in running.samples("otel_fr_collector_disagreements_total")} == {0.0}
    assert job.returncode == 0, job.output
    assert "otel-fr" not in job.output
    assert running.incidents() == []
    assert not job.files(), "a healthy job leaves no files"
