"""What to do first fits the way in which the culprit ended."""

from __future__ import annotations

from typing import Any

import pytest
from otel_fr_collector.incidents.what_to_do import what_to_do

from otel_fr.incident import CulpritData
from tests.support.incident_data import incident_data
from tests.support.virtual_collector import VirtualCollector

ERRORS = {
    "ModuleNotFoundError: No module named 'flash_attn'": "Fix the program",
    "AssertionError: loss is negative": "Fix the program",
    "OSError: [Errno 28] No space left on device: '/ckpt/step-7.pt'": "Free space on the file system",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB": "Let the rank's line take less memory",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": "Drain the host",
    "ShapeError: 3 channels, not 1": "Fix what the rank's exception names",
    "RuntimeError: CUDA error: unspecified launch failure": "Read the end of the rank's output",
}


def advice(collector: VirtualCollector, category: str, **ending: Any) -> str:
    """Of a rank that ends so while its peer waits for it."""
    with collector.job(2) as job:
        job.step()
        job.ranks[0].issue(job.world)
        job.all_reported()
        job.ranks[1].exit(**ending)
        found = collector.wait_cause(lambda one: one["job"] == job.id and one["culprit_ranks"] == [1])
    assert found["category"] == category
    return str(found["what_to_do"])


@pytest.mark.parametrize("error", ERRORS)
def test_an_exception_decides_what_to_do(error: str) -> None:
    culprit: CulpritData = {
        "rank": 1, "host": "n0", "error": error, "replica": None, "ending": "raised", "signal": None
    }  # fmt: skip
    assert what_to_do(incident_data(category="rank_dead"), [culprit]).startswith(ERRORS[error])


@pytest.mark.parametrize(
    ("category", "ending", "text"),
    [
        ("rank_dead", {"code": 1, "exception": {"type": "NameError", "message": "x"}}, "Fix the program"),
        ("rank_dead", {"code": 1, "exit_message": "config: 7 is no multiple of 6"}, "Fix what the rank's exception"),
        ("rank_dead", {"signal": 24}, "Raise the limit that the rank has reached (`ulimit -t`)"),
        ("missing_rank", {"clean": True}, "End the job: the rank has left"),
    ],
)
def test_how_a_rank_ends_decides_what_to_do(category: str, ending: dict[str, Any], text: str) -> None:
    with VirtualCollector() as collector:
        assert advice(collector, category, **ending).startswith(text)


def test_of_a_call_that_failed_for_an_unknown_cause_no_host_is_to_be_drained() -> None:
    found = incident_data(category="stalled_collective", rule="unexplained_failure")
    assert what_to_do(found, []).startswith("Read the ranks' errors")
    assert what_to_do(incident_data(category="stalled_collective"), []).startswith("Find the host")


def stack(*frames: str) -> str:
    lines = [f'  File "{file}", line 7 in {name}' for file, _, name in (frame.partition(" ") for frame in frames)]
    return "\n".join(["Thread 0x1 (most recent call first):", *lines])


TORCH = "/usr/lib/python3.12/site-packages/torch"
SAVE, MAIN = f"{TORCH}/serialization.py _save", "/job/train.py main"
DCP = f"{TORCH}/distributed/checkpoint/filesystem.py write_data"


@pytest.mark.parametrize("category", ["missing_rank", "rank_stuck"])
@pytest.mark.parametrize(
    ("frames", "is_storage"),
    [
        ((SAVE, MAIN), True),
        ((DCP, MAIN), True),
        (("/job/s3.py put", "/job/train.py save_checkpoint", MAIN), True),
        (("/job/data.py load_shard", MAIN), False),
        ((f"{TORCH}/utils/checkpoint.py checkpoint", MAIN), False),
        ((f"{TORCH}/distributed/distributed_c10d.py gather_object", DCP, MAIN), False),
    ],
)
def test_a_rank_in_a_checkpoint_waits_for_storage(frames: tuple[str, ...], is_storage: bool, category: str) -> None:
    data = incident_data(category=category, stacks={"1": stack(*frames)})
    assert ("storage (mount" in what_to_do(data, [])) is is_storage
    assert ("storage of the rank's checkpoint" in what_to_do(data, [], is_over=True)) is is_storage
    assert "storage (mount" not in what_to_do(incident_data(**{**data, "stuck_on": "device"}), [])


def test_a_section_is_a_checkpoint_by_its_name() -> None:
    for section, is_storage in (("saving step 7", True), ("dataloading", False)):
        values = {"1": f"section {section}, limit 30.0 s"}
        data = incident_data(category="section_overrun", field="limit", values=values)
        assert ("storage (mount" in what_to_do(data, [])) is is_storage


@pytest.mark.parametrize(("operation", "text"), [("recv", "skipped a message"), ("all_reduce", "same order")])
def test_ranks_that_wait_for_messages_did_not_use_groups_in_a_wrong_order(operation: str, text: str) -> None:
    assert text in what_to_do(incident_data(category="deadlock", operation=operation), [])


def test_a_stopped_process_can_go_on() -> None:
    halted = {"1": "The process is stopped by a signal (in do_signal_stop)."}
    for stacks, can_go_on in ((halted, True), ({"1": stack("/job/native.py call")}, False)):
        assert ("`kill -CONT " in what_to_do(incident_data(category="rank_stuck", stacks=stacks), [])) is can_go_on
