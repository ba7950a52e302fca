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
from otel_fr_collector.attribution.facts import Culprit, Fault, History, Place, comparable, fault_of
from otel_fr_collector.attribution.rules import RULES, Advice, Recommendation, decide
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.bounds import MAX_CULPRITS
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.workload import WorkloadRequest

from otel_fr.incident import place_data
from otel_fr.match import Category
from otel_fr.match import Place as Process
from tests.support.incident_data import incident_data
from tests.support.paths import DOCS
from tests.support.told import run_in

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
    return [reason["rule"] for reason in found.reasons]


def alike(times: int, culprit: Culprit, **more: Any) -> list[Fault]:
    """The same in so many runs."""
    return [fault(attempt, culprit, **more) for attempt in range(times)]


def samples(*changed: dict[str, Any], place: Place | None = None) -> list[Fault]:
    """One bad sample in each run."""
    return [fault(n, dataclasses.replace(BAD_SAMPLE, **own), place=place) for n, own in enumerate(changed)]


def test_without_a_pattern_the_job_is_restarted() -> None:
    found = advice(fault(0, BAD_SAMPLE))
    assert (found.recommendation, found.nodes, rules(found)) == (Recommendation.RESTART, (), ["otherwise"])
    assert found.reasons[0]["incident_ids"] == ["rank_dead-0-3"]
    assert rules(advice()) == ["otherwise"]


def test_the_same_error_in_the_third_run_stops_the_job_and_names_the_incidents() -> None:
    faults = samples({"node": "n0"}, {"node": "n1"}, {"node": "n2"}, place=STEP)
    assert advice(*faults[:2]).recommendation is Recommendation.RESTART
    found = advice(*faults)
    assert found.recommendation is Recommendation.STOP
    assert found.reasons[0]["incident_ids"] == [one.incident for one in faults]
    assert "ValueError: bad sample 4711 at /job/data.py:17 load in 3 runs" in found.reasons[0]["text"]


NODE_B = Culprit(0, "node-b")
MISMATCH = {"category": "size_mismatch", "place": STEP}
OS_ERRORS = samples({"error": "OSError: 0"}, {"error": "OSError: 1"}, {"error": "OSError: 2"})

PROGRAM_FAULTS: dict[str, tuple[list[Fault], set[str]]] = {
    "in a step that is not always known": ([fault(9, BAD_SAMPLE, place=STEP), *alike(2, BAD_SAMPLE)], {"same_error"}),
    "other steps": ([fault(n, BAD_SAMPLE, place=Place("w", "barrier", n)) for n in range(3)], set()),
    "other lines": (samples({"site": "a.py:1 f"}, {"site": "a.py:2 f"}, {"site": "a.py:3 f"}), set()),
    "other errors": (OS_ERRORS, set()),
    "many ranks, two runs": ([fault(0, BAD_SAMPLE), *(fault(1, BAD_SAMPLE) for _ in range(8))], set()),
    "mismatches": (alike(3, Culprit(1), **MISMATCH), {"same_program_fault"}),
    "mismatches elsewhere": (
        [*alike(2, Culprit(1), **MISMATCH), fault(2, Culprit(1), category="size_mismatch")],
        set(),
    ),
}
NODE_FAULTS: dict[str, tuple[list[Fault], bool]] = {
    "twice": (alike(2, NODE_B), False),
    "three times": (alike(3, NODE_B), True),
    "stuck": ([*alike(2, NODE_B), fault(2, NODE_B, category="rank_stuck")], True),
    "stopped": ([*alike(2, NODE_B), fault(2, Culprit(0, "node-b", is_stopped=True))], False),
    "elsewhere": ([*alike(2, NODE_B), fault(2, Culprit(0, "node-c"))], False),
    "on two nodes": ([*alike(2, NODE_B), fault(2, NODE_B, Culprit(9, "node-c"))], False),
    "errors that only it has": (OS_ERRORS, True),
    "errors that others have too": ([*samples({"error": "OSError: 1", "node": "node-c"}), *OS_ERRORS], False),
}


@pytest.mark.parametrize(("faults", "found"), PROGRAM_FAULTS.values(), ids=PROGRAM_FAULTS)
def test_a_fault_of_the_program_stops_the_job_if_three_runs_had_it(faults: list[Fault], found: set[str]) -> None:
    assert {"same_error", "same_program_fault"}.intersection(rules(advice(*faults))) == found


@pytest.mark.parametrize(("faults", "is_excluded"), NODE_FAULTS.values(), ids=NODE_FAULTS)
def test_a_node_is_excluded_if_only_its_ranks_died_in_three_runs(faults: list[Fault], is_excluded: bool) -> None:
    found = advice(*faults)
    assert (found.nodes, "node_died_often" in rules(found)) == (("node-b",) if is_excluded else (), is_excluded)
    assert (found.recommendation is Recommendation.EXCLUDE_NODE) is is_excluded


def test_addresses_in_an_error_do_not_make_it_another_one() -> None:
    assert comparable("KeyError: <object at 0x7f01>\nmore") == comparable("KeyError: <object at 0x7fff>")


@pytest.mark.parametrize(
    ("error", "is_broken"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", True),
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", True),
        ("RuntimeError: NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.", True),
        ("RuntimeError: NVRM: Xid (PCI:0000:03:00): 94, pid=7", True),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
        ("NVRM: Xid (PCI:0000:03:00): 31, pid=79, MMU Fault", False),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
    ],
)
def test_an_error_that_names_a_broken_device_excludes_its_node_at_once(error: str, is_broken: bool) -> None:
    found = advice(fault(0, Culprit(3, "node-b", error)))
    wanted = (Recommendation.EXCLUDE_NODE, ("node-b",), "hardware_error")
    shown = (found.recommendation, found.nodes, rules(found)[0])
    assert shown == (wanted if is_broken else (Recommendation.RESTART, (), "otherwise"))


def test_what_ranks_ask_for_is_done() -> None:
    exclude = WorkloadRequest(3, "node-b", "exclude_node", "NIC flaps")
    stop = WorkloadRequest(0, "node-a", "stop", "loss is NaN")
    found = advice(fault(0, BAD_SAMPLE), requests=[exclude])
    assert (found.recommendation, found.nodes) == (Recommendation.EXCLUDE_NODE, ("node-b",))
    assert "rank 3 on node node-b asked for it: NIC flaps" in found.reasons[0]["text"]
    found = advice(requests=[exclude, stop])
    assert (found.recommendation, found.nodes) == (Recommendation.STOP, ("node-b",))
    assert rules(found) == ["stop_requested", "exclusion_requested", "otherwise"]


nodes = st.sampled_from(["", "node-a", "node-b"])
error_texts = st.sampled_from(["", "ValueError: x", "OSError: y at 0x7f", "CUDA error: uncorrectable ECC error"])
culprits = st.builds(Culprit, st.integers(0, 3), nodes, error_texts, st.sampled_from(["", "a.py:1 f"]))
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
    assert found.reasons[-1]["rule"] == "otherwise"
    assert found.recommendation == max(
        (Recommendation(one["recommendation"]) for one in found.reasons), key=STRENGTH.index
    )
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


def test_the_nodes_of_all_culprits_count() -> None:
    """A node may have more ranks than an incident has culprits with their errors."""
    hosts = {rank: f"node-{rank // 16}" for rank in range(32)}
    found = fault_of(
        incident_data(
            culprit_ranks=list(hosts),
            culprits=[{"rank": rank, "host": hosts[rank], "error": ""} for rank in range(MAX_CULPRITS)],
            places={str(rank): place_data(Process(host)) for rank, host in hosts.items()},
        )
    )
    assert found.nodes == {"node-0", "node-1"}


@pytest.mark.parametrize("description", ["", "undefined"])
def test_groups_that_the_program_does_not_describe_are_places_of_their_own(description: str) -> None:
    def place(name: str) -> Place | None:
        group = {"id": name, "name": name, "description": description, "ranks": [0, 1]}
        return fault_of(incident_data(process_group=group, operation="all_reduce", sequence_id=5)).place

    assert place("3") != place("4")
    assert place("3") == place("3")


class Asked(Attribution):
    """Where the faults of a job are given, and counted how often they are read."""

    def __init__(self, faults: Sequence[Fault] = (), known: Runs | None = None) -> None:
        super().__init__(known or Runs(), IncidentBook(), None, lambda: 0.0)
        self._faults_read = faults
        self.reads: list[str] = []

    async def _read(self, job: str) -> Sequence[Fault]:
        await asyncio.sleep(0)
        self.reads.append(job)
        return self._faults_read

    def answer(self, **more: Any) -> AttributionData:
        answer = asyncio.run(self.find("llama", **more))
        assert answer is not None
        return answer


@pytest.mark.parametrize(
    ("last", "recommendation"), [(2.0, "exclude_node"), (2.0 + WINDOW / 3600, "restart")], ids=["a day", "more"]
)
def test_what_is_long_past_does_not_count(last: float, recommendation: str) -> None:
    deaths = [
        dataclasses.replace(fault(number, NODE_B), detected=3_600 * hours)
        for number, hours in enumerate((0.0, 1.0, last))
    ]
    answer = Asked(deaths).answer()
    assert (answer["attempt"], answer["recommendation"]) == (2, recommendation)
    assert as_message(answer).recommendation == recommendation


def test_however_many_ask_incidents_are_read_once() -> None:
    found = Asked([fault(0, BAD_SAMPLE)])

    async def play() -> None:
        answers = await asyncio.gather(*(found.find(job) for job in ["a", "b"] * 50))
        assert {answer["recommendation"] for answer in answers if answer} == {"restart"}

    asyncio.run(play())
    assert found.reads == ["a", "b"]


def test_a_job_that_is_not_known_has_no_answer() -> None:
    assert asyncio.run(Attribution(Runs(), IncidentBook(), None).find("llama", 3)) is None


DEAD = Fault("dead", RunId("llama", 0, "a"), "rank_dead", 1000.0, summary="rank 1 was killed")


def runs_of(*runs: tuple[str, int, float, float, str]) -> Runs:
    """Of each: run id, attempt, when it was first and last heard of, and the host of its two processes."""
    known = Runs()
    for number, attempt, first, last, host in runs:
        run = run_in(known, number, first, job="llama", attempt=attempt)
        run.last_seen = last
        run.ranks = {rank: RankState(rank, place=Process(host, 4711 + rank)) for rank in range(2)}
    return known


def test_of_two_runs_of_one_name_at_the_same_time_the_answer_has_both() -> None:
    asked = Asked([DEAD], runs_of(("a", 0, 0.0, 100.0, "node-a"), ("b", 0, 50.0, 100.0, "node-b")))
    newest = asked.answer()
    assert (newest["run_id"], newest["failure"]) == ("b", None)
    assert newest["other_runs"] == [
        {"attempt": 0, "run_id": "a", "recommendation": "restart", "exclude_nodes": [], "summary": "rank 1 was killed"}
    ]
    message = as_message(newest).other_runs[0]
    assert (message.run_id, message.recommendation, message.summary) == ("a", "restart", "rank 1 was killed")
    older = asked.answer(run_id="a")
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
def test_a_run_that_follows_another_is_no_other_job(second: tuple[str, int, float, float, str], why: str) -> None:
    known = runs_of(("a", 0, 0.0, 100.0, "node-a"), second)
    assert Asked([DEAD], known).answer()["other_runs"] == [], why


def test_the_table_in_the_documents_is_the_table_of_the_program() -> None:
    text = (DOCS / "guide" / "fault-tolerance.md").read_text()
    rows = [f"| `{rule.name}` | `{rule.recommendation.value}` | {rule.when} |" for rule in RULES]
    assert "\n".join(rows) in text
