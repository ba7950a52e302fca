"""The rules of attribution, and how an answer is found."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otel_fr_collector.attribution.answer import WINDOW, Attribution, AttributionData, as_message
from otel_fr_collector.attribution.facts import Culprit, Fault, History, Place, comparable, fault_of, faults_of
from otel_fr_collector.attribution.rules import RULES, Advice, Recommendation, decide
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.workload import WorkloadRequest

from otel_fr.incident import CollectorIncidentData
from otel_fr.match import Category
from otel_fr.match import Place as Process
from tests.support.incident_data import incident_data
from tests.support.paths import DOCS

STEP = Place("default_pg", "all_reduce", 7)
BAD_SAMPLE = Culprit(3, "node-b", "ValueError: bad sample 4711", "/job/data.py:17 load")
STRENGTH = list(Recommendation)


def fault(attempt: int, *culprits: Culprit, category: str = "rank_dead", place: Place | None = None) -> Fault:
    run = RunId("llama", attempt, f"run-{attempt}")
    number = f"{category}-{attempt}-{'-'.join(str(one.rank) for one in culprits)}"
    return Fault(number, run, category, 1000.0 + attempt, culprits, place, "rank 3 was killed")


def advice(*faults: Fault, requests: Sequence[WorkloadRequest] = ()) -> Advice:
    """About the run of the last fault."""
    now = [one for one in faults if one.run == faults[-1].run] if faults else []
    return decide(History(tuple(now), tuple(one for one in faults if one not in now), tuple(requests)))


def rules(found: Advice) -> list[str]:
    return [reason.rule for reason in found.reasons]


def test_the_first_fault_is_a_reason_to_restart() -> None:
    found = advice(fault(0, BAD_SAMPLE))
    assert (found.recommendation, found.nodes, rules(found)) == (Recommendation.RESTART, (), ["otherwise"])
    assert found.reasons[0].incidents == ("rank_dead-0-3",)
    assert advice().reasons[0].text == "no incident of this run is known"


def test_the_same_error_at_the_same_step_in_the_third_run_stops_the_job() -> None:
    faults = [fault(attempt, dataclasses.replace(BAD_SAMPLE, node=f"n{attempt}"), place=STEP) for attempt in range(3)]
    assert advice(*faults[:2]).recommendation is Recommendation.RESTART
    found = advice(*faults)
    assert found.recommendation is Recommendation.STOP
    assert found.reasons[0].rule == "same_error"
    assert found.reasons[0].incidents == tuple(one.incident for one in faults)
    assert "ValueError: bad sample 4711 at /job/data.py:17 load in 3 runs" in found.reasons[0].text


def test_the_same_error_at_other_steps_or_lines_does_not() -> None:
    steps = [fault(n, BAD_SAMPLE, place=Place("default_pg", "all_reduce", n)) for n in range(3)]
    lines = [fault(n, dataclasses.replace(BAD_SAMPLE, site=f"/job/data.py:{n} load")) for n in range(3)]
    texts = [fault(n, dataclasses.replace(BAD_SAMPLE, error=f"ValueError: bad sample {n}")) for n in range(3)]
    for faults in (steps, lines, texts):
        assert "same_error" not in rules(advice(*faults))


def test_where_no_step_is_known_the_error_and_its_line_decide() -> None:
    faults = [fault(0, BAD_SAMPLE, place=STEP), fault(1, BAD_SAMPLE), fault(2, BAD_SAMPLE, place=STEP)]
    assert advice(*faults).recommendation is Recommendation.STOP


def test_ranks_of_one_run_with_the_same_error_count_once() -> None:
    culprits = [dataclasses.replace(BAD_SAMPLE, rank=rank) for rank in range(8)]
    assert "same_error" not in rules(advice(fault(0, *culprits), *(fault(1, one) for one in culprits)))


def test_addresses_in_an_error_do_not_make_it_another_one() -> None:
    assert comparable("KeyError: <object at 0x7f01>\nmore") == comparable("KeyError: <object at 0x7fff>")


def test_a_fault_of_the_program_in_the_same_collective_stops_the_job() -> None:
    faults = [fault(n, Culprit(n), category="size_mismatch", place=STEP) for n in range(3)]
    assert rules(advice(*faults)) == ["same_program_fault", "otherwise"]
    other = fault(2, Culprit(0), category="size_mismatch", place=Place("dp", "all_reduce", 7))
    assert advice(*faults[:2], other).recommendation is Recommendation.RESTART


def test_a_nodes_third_death_excludes_it() -> None:
    deaths = [fault(n, Culprit(n, "node-b")) for n in range(3)]
    assert advice(*deaths[:2]).recommendation is Recommendation.RESTART
    found = advice(*deaths)
    assert (found.recommendation, found.nodes) == (Recommendation.EXCLUDE_NODE, ("node-b",))
    assert rules(found) == ["node_died_often", "otherwise"]
    stuck = fault(2, Culprit(0, "node-b"), category="rank_stuck")
    assert advice(*deaths[:2], stuck).nodes == ("node-b",)
    stopped = fault(2, Culprit(0, "node-b", is_stopped=True))
    assert advice(*deaths[:2], stopped).nodes == ()


def test_a_node_is_not_blamed_for_what_happens_elsewhere() -> None:
    deaths = [fault(n, Culprit(n, "node-b")) for n in range(2)]
    assert advice(*deaths, fault(2, Culprit(0, "node-c"))).nodes == ()
    assert advice(*deaths, fault(2, Culprit(0, "node-b"), Culprit(9, "node-c"))).nodes == ()
    # An error that ranks on other nodes have too is the program's.
    here = [fault(n, dataclasses.replace(BAD_SAMPLE, error=f"OSError: {n}")) for n in range(3)]
    assert advice(*here).nodes == ("node-b",)
    there = fault(3, dataclasses.replace(BAD_SAMPLE, error="OSError: 1", node="node-c"))
    assert advice(here[0], there, here[1], here[2]).nodes == ()


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "pynvml.NVMLError_GpuIsLost: GPU is lost",
        "RuntimeError: NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.",
        "RuntimeError: NVRM: Xid (PCI:0000:03:00): 94, pid=7",
    ],
)
def test_an_error_that_names_a_broken_device_excludes_its_node_at_once(error: str) -> None:
    found = advice(fault(0, Culprit(3, "node-b", error)))
    assert (found.recommendation, found.nodes, rules(found)[0]) == (
        Recommendation.EXCLUDE_NODE,
        ("node-b",),
        "hardware_error",
    )


def test_what_ranks_ask_for_is_done() -> None:
    exclude = WorkloadRequest(3, "node-b", "exclude_node", "NIC flaps")
    stop = WorkloadRequest(0, "node-a", "stop", "loss is NaN")
    found = advice(fault(0, BAD_SAMPLE), requests=[exclude])
    assert (found.recommendation, found.nodes) == (Recommendation.EXCLUDE_NODE, ("node-b",))
    assert found.reasons[0].text == "rank 3 on node node-b asked for it: NIC flaps"
    found = advice(requests=[exclude, stop])
    assert (found.recommendation, found.nodes) == (Recommendation.STOP, ("node-b",))
    assert rules(found) == ["stop_requested", "exclusion_requested", "otherwise"]


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "NVRM: Xid (PCI:0000:03:00): 31, pid=79, MMU Fault",
        "torch.OutOfMemoryError: CUDA out of memory",
    ],
)
def test_an_error_of_the_program_on_its_device_does_not(error: str) -> None:
    assert advice(fault(0, Culprit(3, "node-b", error))).recommendation is Recommendation.RESTART


nodes = st.sampled_from(["", "node-a", "node-b"])
errors = st.sampled_from(["", "ValueError: x", "OSError: y at 0x7f", "CUDA error: uncorrectable ECC error"])
culprits = st.builds(Culprit, st.integers(0, 3), nodes, errors, st.sampled_from(["", "a.py:1 f"]))
places = st.none() | st.builds(Place, st.sampled_from(["dp", "tp"]), st.just("all_reduce"), st.integers(0, 1))
faults_of_jobs = st.lists(
    st.builds(
        lambda attempt, found, category, place: fault(attempt, *found, category=category.value, place=place),
        st.integers(0, 4), st.lists(culprits, max_size=3), st.sampled_from(Category), places,
    ), max_size=8,
)  # fmt: skip
requests_of_jobs = st.lists(
    st.builds(WorkloadRequest, st.integers(0, 3), nodes, st.sampled_from(["stop", "exclude_node"])), max_size=3
)


@given(before=faults_of_jobs, now=faults_of_jobs, requests=requests_of_jobs, seed=st.integers(0, 99))
def test_what_is_advised_follows_from_what_is_known(
    before: list[Fault], now: list[Fault], requests: list[WorkloadRequest], seed: int
) -> None:
    current = tuple(dataclasses.replace(one, run=RunId("llama", 9, "run-9"), detected=2000.0) for one in now)
    history = History(current, tuple(before), tuple(requests))
    found = decide(history)
    known = {culprit.node for one in history.all for culprit in one.culprits} | {one.host for one in requests}
    assert set(found.nodes) <= known - {""}
    assert found.reasons[-1].rule == "otherwise"
    assert found.recommendation == max((one.recommendation for one in found.reasons), key=STRENGTH.index)
    if found.recommendation is Recommendation.EXCLUDE_NODE:
        assert found.nodes
    # The order in which earlier faults are known does not matter, and more of them never weaken the advice.
    mixed = list(before)
    random.Random(seed).shuffle(mixed)
    assert decide(dataclasses.replace(history, before=tuple(mixed))).recommendation == found.recommendation
    if not any(one.same for each in before for one in each.culprits):
        fewer = decide(dataclasses.replace(history, before=history.before[1:]))
        assert STRENGTH.index(fewer.recommendation) <= STRENGTH.index(found.recommendation)
    # Nothing but a request or a pattern of three runs, or an error of a device, is more than a restart.
    runs = {one.run for one in history.all}
    devices = any("ECC" in one.error for each in current for one in each.culprits)
    if len(runs) < 3 and not requests and not devices:
        assert found.recommendation is Recommendation.RESTART


def test_a_fault_is_read_from_its_incident() -> None:
    found = fault_of(
        incident_data(
            culprit_ranks=[1],
            culprits=[{"rank": 1, "host": "node-b", "error": "ValueError: x"}],
            process_group={"id": "g", "name": "0", "description": "default_pg", "ranks": [0, 1]},
            operation="all_reduce",
            sequence_id=5,
        )
    )
    assert found.culprits == (Culprit(1, "node-b", "ValueError: x", "a.py:1 f"),)
    assert found.place == Place("default_pg", "all_reduce", 5)
    assert found.detected == 1767323045.678
    assert fault_of(incident_data(culprits=[], culprit_ranks=[1])).culprits == (Culprit(1, site="a.py:1 f"),)


@pytest.mark.parametrize("description", ["", "undefined"])
def test_groups_that_the_program_does_not_describe_are_places_of_their_own(description: str) -> None:
    def place(name: str) -> Place | None:
        group = {"id": name, "name": name, "description": description, "ranks": [0, 1]}
        return fault_of(incident_data(process_group=group, operation="all_reduce", sequence_id=5)).place

    assert place("3") != place("4")
    assert place("3") == place("3")


def test_what_is_long_past_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def incident(number: int, hours: float) -> CollectorIncidentData:
        return incident_data(
            id=f"{number:016x}", job="llama", attempt=number, run_id=f"run-{number}", category="rank_dead",
            culprit_ranks=[1], culprits=[{"rank": 1, "host": "node-b", "error": ""}],
            detected_at=f"2026-01-{3 + int(hours // 24):02}T{int(hours % 24):02}:00:00.000Z",
        )  # fmt: skip

    def ask(*hours: float) -> str:
        async def read(_: str) -> list[Fault]:
            return faults_of(incident(number, one) for number, one in enumerate(hours))

        found = Attribution(Runs(), IncidentBook(), None)
        monkeypatch.setattr(found, "_read", read)
        answer = asyncio.run(found.find("llama"))
        assert answer is not None
        assert answer["attempt"] == 2
        assert as_message(answer).recommendation == answer["recommendation"]
        return answer["recommendation"]

    assert ask(0.0, 1.0, 2.0) == "exclude_node"
    assert ask(0.0, 1.0, 2.0 + WINDOW / 3600) == "restart"


def test_however_many_ask_incidents_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    found = Attribution(Runs(), IncidentBook(), None)

    async def read(job: str) -> list[Fault]:
        await asyncio.sleep(0)
        reads.append(job)
        return [fault(0, BAD_SAMPLE)]

    monkeypatch.setattr(found, "_read", read)

    async def play() -> None:
        answers = await asyncio.gather(*(found.find(job) for job in ["a", "b"] * 50))
        assert {answer["recommendation"] for answer in answers if answer} == {"restart"}

    asyncio.run(play())
    assert reads == ["a", "b"]


def test_a_job_that_is_not_known_has_no_answer() -> None:
    assert asyncio.run(Attribution(Runs(), IncidentBook(), None).find("llama", 3)) is None


def runs_of(*runs: tuple[str, int, float, float, str]) -> Runs:
    """Of each: run id, attempt, when it was first and last heard of, and the host of its two processes."""
    known = Runs()
    for number, attempt, first, last, host in runs:
        run = known.get(RunId("llama", attempt, number), first)
        assert run is not None
        run.last_seen = last
        run.ranks = {rank: RankState(rank, place=Process(host, 4711 + rank)) for rank in range(2)}
    return known


def asked(known: Runs, monkeypatch: pytest.MonkeyPatch, **more: Any) -> AttributionData:
    found = Attribution(known, IncidentBook(), None)
    dead = Fault("dead", RunId("llama", 0, "a"), "rank_dead", 1000.0, summary="rank 1 was killed")

    async def read(_: str) -> list[Fault]:
        return [dead]

    monkeypatch.setattr(found, "_read", read)
    answer = asyncio.run(found.find("llama", **more))
    assert answer is not None
    return answer


def test_of_two_runs_of_one_name_at_the_same_time_the_answer_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    known = runs_of(("a", 0, 0.0, 100.0, "node-a"), ("b", 0, 50.0, 100.0, "node-b"))
    newest = asked(known, monkeypatch)
    assert (newest["run_id"], newest["failure"]) == ("b", None)
    assert newest["other_runs"] == [
        {"attempt": 0, "run_id": "a", "recommendation": "restart", "exclude_nodes": [], "summary": "rank 1 was killed"}
    ]
    message = as_message(newest).other_runs[0]
    assert (message.run_id, message.recommendation, message.summary) == ("a", "restart", "rank 1 was killed")
    older = asked(known, monkeypatch, run_id="a")
    assert older["failure"] is not None
    assert older["failure"]["incident_id"] == "dead"
    assert [one["run_id"] for one in older["other_runs"]] == ["b"]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (("b", 0, 95.0, 200.0, "node-b"), "its first reports came while the last ones of the run before did"),
        (("b", 1, 150.0, 200.0, "node-a"), "it came after it"),
        (("b", 1, 50.0, 100.0, "node-a"), "the same processes go on in it"),
    ],
)
def test_a_run_that_follows_another_is_no_other_job(
    second: tuple[str, int, float, float, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = runs_of(("a", 0, 0.0, 100.0, "node-a"), second)
    assert asked(known, monkeypatch)["other_runs"] == [], why


def test_the_table_in_the_documents_is_the_table_of_the_program() -> None:
    text = (DOCS / "guide" / "fault-tolerance.md").read_text()
    rows = [f"| `{rule.name}` | `{rule.recommendation.value}` | {rule.when} |" for rule in RULES]
    assert "\n".join(rows) in text
