"""What an answer is worth, the programs' truths, and the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.localisation.answers import Answer, Outcome, named, outcome
from benchmarks.localisation.catalogue import Program, catalogue, read
from benchmarks.localisation.field import Row
from benchmarks.localisation.held_out import HEALTHY_EVERY, KINDS, held_out
from benchmarks.localisation.tables import programs, summary
from benchmarks.localisation.tools.readings import minority


def program(*culprits: set[int], name: str = "made") -> Program:
    return Program(name, "made", tuple(map(frozenset, culprits)), 4, Path("made.py"))


@pytest.mark.parametrize(
    ("culprits", "answer", "worth"),
    [
        ([{1}], named([1]), "right"),
        ([{1}], named([1, 2]), "right and others"),
        ([{1}], named([2]), "wrong"),
        ([{1, 3}], named([1]), "wrong"),
        ([{1, 3}], named([1, 3]), "right"),
        ([{0}, {0, 1, 2}], named([0, 1, 2]), "right"),
        ([{0}, {0, 1, 2}], named([0, 1]), "right and others"),
        ([{1}], named([]), "silent"),
        ([{1}], named([], otherwise="undecided"), "undecided"),
        ([{1}], Answer("crash"), "crash"),
        ([{1}], Answer("not run"), "not run"),
        ([], named([1]), "false alarm"),
        ([], named([]), "quiet"),
        ([], named([], otherwise="undecided"), "quiet"),
        ([], Answer("crash"), "crash"),
        ([], Answer("not run"), "not run"),
    ],
)
def test_what_an_answer_is_worth(culprits: list[set[int]], answer: Answer, worth: Outcome) -> None:
    assert outcome(program(*culprits), answer) == worth


def test_who_differs_from_most() -> None:
    assert minority({0: "a", 1: "b", 2: "a"}) == {1}
    assert minority({0: "a", 1: "b"}) == {0, 1}
    assert minority({0: "a", 1: "a"}) == set()
    assert minority({}) == set()


def test_every_program_says_its_truth() -> None:
    found = catalogue()
    faulty = [one for one in found if not one.is_healthy]
    assert len(faulty) >= 25
    assert len(found) - len(faulty) >= 12
    assert sum(one.world == 8 for one in found) >= 5
    assert found[: len(faulty)] == faulty
    for one in found:
        assert one.culprits or one.kind == "healthy"
        assert all(culprits and max(culprits) < one.world for culprits in one.culprits)
        assert 2 <= one.world <= 4 or one.name.endswith(f"-{one.world}")


def test_a_program_without_a_truth_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text("step()\n")
    with pytest.raises(ValueError, match=r"made\.py"):
        read(path)
    with pytest.raises(ValueError, match="no such program: made"):
        catalogue(["made"])


def test_faults_of_a_device_are_no_programs_of_gloo() -> None:
    (stuck,) = catalogue(["device_stuck"])
    (missing,) = catalogue(["missing"])
    assert not stuck.runs_on("gloo")
    assert stuck.runs_on("nccl")
    assert missing.runs_on("gloo")
    (objects,) = catalogue(["healthy_objects"])
    assert objects.runs_on("gloo")
    assert not objects.runs_on("nccl")


def test_a_seed_makes_the_same_jobs(tmp_path: Path) -> None:
    count = 2 * len(KINDS)
    first, again, other = (held_out(count, seed, tmp_path / name) for seed, name in ((3, "a"), (3, "b"), (4, "c")))
    texts = [[Path(one.arguments[0]).read_text() for one in jobs] for jobs in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert [one.culprits for one in first] == [one.culprits for one in again]
    assert {one.kind for one in first} == {*KINDS, "healthy"}
    assert sum(one.is_healthy for one in first) == count // HEALTHY_EVERY
    for one in first:
        assert all(max(culprits) < one.world for culprits in one.culprits)


def made_row(program: str, tool: str, outcome: Outcome, **more: object) -> Row:
    healthy = program.startswith("healthy")
    own: Row = {"backend": "gloo", "program": program, "kind": "made", "world": 3, "tool": tool, "outcome": outcome}
    return {
        **own,
        "culprits": [] if healthy else [[1]],
        "ranks": [],
        "strayed": [],
        "seconds": None,
        "text": "",
        **more,
    }


def test_the_tables() -> None:
    rows = [
        made_row("missing", "otel-fr, live", "right", ranks=[1], seconds=4.0),
        made_row("size", "otel-fr, live", "right", ranks=[1], seconds=2.0),
        made_row("healthy_a", "otel-fr, live", "false alarm", ranks=[2]),
        made_row("missing", "torchfrtrace", "right and others", ranks=[0, 1], seconds=20.0),
        made_row("size", "torchfrtrace", "crash"),
        made_row("healthy_a", "torchfrtrace", "crash"),
        made_row("missing", "NVIDIA's analyzer", "not run"),
    ]
    live, trace, nvidia = (line.split(" | ") for line in summary(rows).splitlines()[2:])
    assert live[2:] == ["**2** of 2", "", "", "", "", "", "3.0 (4.0)", "1 of 1", "0.4 µs |"]
    assert trace[2:] == ["**0** of 2", "1", "", "", "", "1", "", "0 of 1, 1 crashes", "1.5 µs |"]
    assert nvidia[2] == "not run"
    lines = programs(rows, "gloo").splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == ["| `missing`", "| `size`", "| `healthy_a`"]
    assert lines[0] == "| `missing` | 1 | right 4 s | + 0, 1 |  |"
    assert lines[2].startswith("| `healthy_a` | nobody | ALARM 2 | crash")
