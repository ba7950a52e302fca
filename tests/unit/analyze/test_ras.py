"""Answers of NCCL's RAS beside flight-recorder files, made by the documented format: there is no NCCL here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.analyze import load
from otel_fr.analyze.output.markdown import to_markdown
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.page import to_html
from otel_fr.analyze.output.text import to_json, to_text
from otel_fr.dumps.nccl_ras import parse_answer
from tests.support.ras_server import answer, communicator, missing, rank
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


def test_ranks_that_do_not_answer_and_counts_that_differ_are_said_by_group_and_rank(tmp_path: Path) -> None:
    folder = job(tmp_path)
    found = lines(
        folder,
        answer(
            communicator([rank(0, 100), rank(1, 101), rank(2, 102)], [missing(3, 103, dead=True)]),
            communicator([rank(0, 102), rank(1, 103, {"AllReduce": 119})]),
        ),
    )
    assert found == [
        "group default_pg (0): rank 3 did not answer, and NCCL considers it dead",
        "group upper (5): calls of all_reduce started: 119 on rank 3, 120 on rank 2",
    ]


def test_errors_and_aborts_are_said(tmp_path: Path) -> None:
    ranks = [rank(0, 100), rank(1, 101, async_error=6), rank(2, 102, abort_flag=True), rank(3, 103, async_error=7)]
    assert lines(job(tmp_path), answer(communicator(ranks), timeouts=2)) == [
        "group default_pg (0): rank 1 with NCCL's error 6 (remote process error)",
        "group default_pg (0): aborted on rank 2",
        "some processes did not answer in time (2 timeouts)",
    ]


def test_a_healthy_answer_says_so(tmp_path: Path) -> None:
    healthy = answer(communicator([rank(number, 100 + number) for number in range(4)]))
    assert lines(job(tmp_path), healthy) == ["1 communicator: all ranks answered, and have started equally many calls"]


def test_a_communicator_whose_processes_fit_no_group_or_several_keeps_its_own_name(tmp_path: Path) -> None:
    folder = job(tmp_path)
    other = communicator([rank(0, 103), rank(1, 102)], [])
    other["ranks"][0]["collective_counts"]["AllReduce"] = 7
    assert lines(folder, answer(other)) == [
        "communicator 0x7f8c496ae9f661 of 2 ranks: calls of all_reduce started: 7 on rank 0, 120 on rank 1"
    ]


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


def test_a_cut_answer_is_a_problem(tmp_path: Path) -> None:
    folder = job(tmp_path)
    (folder / "ras.json").write_text(answer(communicator([rank(0, 100)]))[:400])
    (problem,) = load(folder).problems
    assert problem.text == "it is no answer of NCCL's RAS, or not a whole one (JSONDecodeError)"


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
    with pytest.raises(ValueError, match="no answer"):
        parse_answer(b"[" * 100_000)
