"""Answers of NCCL's RAS beside flight-recorder files, made by the documented format: there is no NCCL here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr import rank_report, ras_text
from otel_fr.analyze import load
from otel_fr.analyze.output.markdown import to_markdown
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.page import to_html
from otel_fr.analyze.output.text import to_json, to_text
from otel_fr.analyze.ras import MAX_FILES
from otel_fr.dumps.nccl_ras import essence, parse_answer
from otel_fr.identity import MAX_RANKS, decode_ranks
from otel_fr.match import Group
from otel_fr.rank_report.ras import MAX_COMMUNICATORS, MAX_FACTS, MAX_RANKS_TEXT, ReportedCommunicator, ReportedFact
from tests.support.ras_server import answer, communicator, missing, rank, without_comma
from tests.support.rings import RankRing, float_signature


def job(folder: Path, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Path:
    """Ranks with processes 100, 101, ..., and a group of the upper half."""
    for number in ranks:
        ring = RankRing(folder / "rings", number, 4)
        if number >= 2:
            ring.group("5", (2, 3), "upper")
            ring.call(float_signature(), group="5")
        ring.call(float_signature())
        ring.write(folder / "files", pid=100 + number)
    return folder / "files"


def lines(folder: Path, text: str) -> list[str]:
    (folder / "ras.json").write_text(text)
    report = load(folder)
    assert not report.problems
    first, *rest = report.ras_lines
    assert first == f"{folder / 'ras.json'}: NCCL 2.28.9, 2026-11-23 14:03:12"
    return rest


def test_an_answer_of_nccl_2_28_with_a_rank_missing_lacks_a_comma_and_is_read(tmp_path: Path) -> None:
    text = without_comma(answer(communicator([rank(0, 100)], [missing(1, 101), missing(2, 102)]), timeouts=0))
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    (one,) = parse_answer(text.encode()).communicators
    assert [(part.rank, part.pid, part.is_missing) for part in one.ranks] == [
        (0, 100, False),
        (1, 101, True),
        (2, 102, True),
    ]


def test_of_very_many_answers_the_newest_are_read(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        path = tmp_path / f"run-{number:03}" / "ras.json"
        path.parent.mkdir()
        path.write_text(answer(communicator([rank(0, 100)])))
        os.utime(path, (MAX_FILES - number,) * 2)
    found = [Path(one.path).parent.name for one in load(tmp_path).ras]
    assert found == [f"run-{number:03}" for number in range(MAX_FILES)]
    os.utime(tmp_path / "run-064" / "ras.json", (1_000, 1_000))
    assert "run-064" in {Path(one.path).parent.name for one in load(tmp_path).ras}


WELL = communicator([rank(number, 100 + number) for number in range(4)])
ERRORS = [rank(0, 100), rank(1, 101, async_error=6), rank(2, 102, abort_flag=True), rank(3, 103, async_error=7)]
ASTRAY = [rank(0, 103, {"AllReduce": 7}), rank(1, 102)]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answer(WELL), ["1 communicator: all ranks answered, and have started equally many calls"]),
        (
            answer(
                communicator([rank(0, 100), rank(1, 101), rank(2, 102)], [missing(3, 103, dead=True)]),
                communicator([rank(0, 102), rank(1, 103, {"AllReduce": 119})]),
            ),
            [
                "group default_pg (0): rank 3 did not answer, and NCCL considers it dead",
                "group upper (5): calls of all_reduce started: 119 on rank 3, 120 on rank 2",
            ],
        ),
        (
            answer(communicator(ERRORS), timeouts=2),
            [
                "group default_pg (0): rank 1 with NCCL's error 6 (remote process error)",
                "group default_pg (0): aborted on rank 2",
                "some processes did not answer in time (2 timeouts)",
            ],
        ),
        (  # Its processes fit no group: it keeps its own name.
            answer(communicator(ASTRAY)),
            ["communicator 0x7f8c496ae9f661 of 2 ranks: calls of all_reduce started: 7 on rank 0, 120 on rank 1"],
        ),
    ],
    ids=["healthy", "missing", "errors", "no group"],
)
def test_what_is_odd_is_said_by_group_and_rank(tmp_path: Path, said: str, expected: list[str]) -> None:
    assert lines(job(tmp_path), said) == expected


def test_the_answer_of_another_run_is_named_and_not_used(tmp_path: Path) -> None:
    folder = job(tmp_path)
    (folder / "ras.json").write_text(answer(communicator([rank(0, 9)], [missing(1, 10)])))
    assert load(folder).ras_lines == [f"{folder / 'ras.json'} is of processes that are not of this run"]


def test_every_form_of_the_report_has_it_and_the_verdict_does_not(tmp_path: Path) -> None:
    folder = job(tmp_path)
    before = load(folder).status
    said = "rank 3 did not answer"
    lines(folder, answer(communicator([rank(n, 100 + n) for n in range(3)], [missing(3, 103)])))
    report = load(folder)
    assert report.status == before
    assert any(said in line for line in json.loads(to_json(report))["nccl_ras"])
    for made in (to_text(report), to_markdown(report, View()), to_html(report, View())):
        assert said in made


def test_a_report_has_the_odd_things_only_and_a_bounded_number_of_them() -> None:
    well = communicator([rank(0, 1), rank(1, 2)])
    odd = communicator([rank(n, 100 + n, {"AllReduce": 120 + n % 40}) for n in range(2_000)], [missing(2_000, 0)])
    said = essence(parse_answer(answer(well, *[odd] * 20, timeouts=3).encode()), 1.5)
    assert (said.age_s, said.version, said.communicators, said.timeouts) == (1.5, "2.28.9", 21, 3)
    assert (len(said.odd), said.odd_more) == (MAX_COMMUNICATORS, 20 - MAX_COMMUNICATORS)
    first = said.odd[0]
    assert first.size == 2_001
    assert first.processes == (*((n, 100 + n) for n in range(31)), (1_999, 2_099))
    assert first.facts[0] == ReportedFact("silent", "2000")
    assert len(first.facts) == MAX_FACTS
    report = rank_report.RankReport(0, 0, (), ras=said)
    built = rank_report.build(report)
    assert rank_report.parse(built).ras == said
    assert len(built) < 64_000


def test_of_many_ranks_that_form_no_range_the_first_are_named_and_the_others_counted() -> None:
    lost = [missing(n, 0) for n in range(5_000) if n % 7 in (0, 1, 3)]
    said = essence(parse_answer(answer(communicator([rank(6, 7)], lost, size=5_000)).encode()), 0.0)
    (fact,) = said.odd[0].facts
    assert len(fact.ranks) <= MAX_RANKS_TEXT
    assert len(decode_ranks(fact.ranks)) + fact.more == len(lost)
    (line,) = ras_text.sentences(said.odd[0], None)
    assert f" and {fact.more} more did not answer" in line


def test_all_ranks_of_the_largest_job_are_named() -> None:
    lost = ReportedFact("silent", f"0-{MAX_RANKS - 1}", 0)
    (line,) = ras_text.sentences(ReportedCommunicator("0x1", MAX_RANKS, (), (lost,)), None)
    assert f"ranks 0-{MAX_RANKS - 1} did not answer" in line


WORDS = st.text(max_size=8) | st.sampled_from(["silent", "dead", "error", "aborted", "started", "0-3", "9-1", "x"])
NUMBERS = st.integers(-(2**40), 2**40)


@given(
    st.builds(
        ReportedCommunicator,
        WORDS,
        st.integers(-1, 5),
        st.lists(st.lists(NUMBERS, max_size=3).map(tuple), max_size=3).map(tuple),
        st.lists(st.builds(ReportedFact, WORDS, WORDS, NUMBERS, st.none() | NUMBERS, WORDS), max_size=4).map(tuple),
    )
)
def test_whatever_a_report_has_is_told_without_an_error(given_: ReportedCommunicator) -> None:
    group = Group("g", "0", "default_pg", (0, 1, 2, 3))
    for found in (None, ras_text.group_of(given_, [group], {0: 1, 1: None})):
        list(ras_text.sentences(given_, found))
    list(ras_text.sentences(given_, group))


def test_a_report_that_claims_many_more_ranks_takes_no_memory_for_them() -> None:
    claimed = ReportedCommunicator("0x1", 3, (), (ReportedFact("dead", "2", 2**62),))
    assert list(ras_text.sentences(claimed, None)) == [
        f"communicator 0x1 of 3 ranks: rank 2 and {2**62} more did not answer, and NCCL considers them dead"
    ]


def test_a_cut_answer_is_a_problem(tmp_path: Path) -> None:
    folder = job(tmp_path)
    (folder / "ras.json").write_text(answer(communicator([rank(0, 100)]))[:400])
    (problem,) = load(folder).problems
    assert problem.text == "not an answer of NCCL's RAS, or a truncated one (JSONDecodeError)"


KEYS = st.sampled_from(["nccl_version", "communicators", "ranks", "missing_ranks", "hash", "size", "rank", "status"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@given(VALUES)
def test_any_json_is_an_answer_or_a_value_error(value: object) -> None:
    try:
        parse_answer(json.dumps(value).encode())
    except ValueError:
        return
    assert isinstance(value, dict)


def test_deep_json_is_refused() -> None:
    with pytest.raises(ValueError, match="not an answer"):
        parse_answer(b"[" * 100_000)
