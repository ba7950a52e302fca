"""Which loops a rank has left, of programs that are run here: what is said of them is what they did."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.capture import sites
from otel_fr.monitor.process import left_loops as looks
from otel_fr.monitor.process.left_loops import LeftLoops, Now, left_loops
from otel_fr.monitor.process.source_loops import MAX_SOURCE, Place, Sources
from otel_fr.rank_report import ReportedLoop
from tests.support.followed_ring import FollowedRing
from tests.support.waiting import until

LATER = time.time() + 1e6
"""Programs of these tests were not changed after that."""
MOST_POINTS = 24
HEAD = "from contextlib import nullcontext\n"


class Point(NamedTuple):
    """Where a program was: its frames, the innermost first, and the lines of the loops that it was in."""

    frames: tuple[Place, ...]
    loops: tuple[int, ...]


class _EnoughError(Exception):
    pass


def play(path: Path) -> list[Point]:
    """Run a program. It calls ``point`` or ``step_point``; each of its loops is alone in a block ``with inside():``."""
    points: list[Point] = []
    active: list[int] = []

    def point() -> None:
        frames: list[Place] = []
        frame = sys._getframe(1)
        while frame.f_code.co_filename == str(path):
            frames.append((str(path), frame.f_lineno, frame.f_code.co_name))
            assert frame.f_back is not None
            frame = frame.f_back
        points.append(Point(tuple(frames), tuple(active)))
        if len(points) >= MOST_POINTS:
            raise _EnoughError

    @contextmanager
    def inside() -> Iterator[None]:
        line = sys._getframe(2).f_lineno + 1
        active.append(line)
        try:
            yield
        finally:
            active.remove(line)

    turns = iter(range(10**6))
    names = {"point": point, "step_point": point, "inside": inside, "turn": lambda: next(turns)}
    with suppress(_EnoughError):
        exec(compile(path.read_text(), str(path), "exec"), names)
    return points


def said(call: Point, now: Point | None) -> tuple[ReportedLoop, ...]:
    frames = () if now is None else now.frames[::-1]
    return left_loops([call.frames], Now(frames, len(frames)), Sources(LATER))


def lines_of(loops: Sequence[ReportedLoop]) -> list[tuple[int, int, str, bool]]:
    return [(one.first, one.last, one.function, one.is_nested) for one in loops]


def program(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return path


# ---- programs of any shape


Body = list[str]


def _indented(body: Body) -> Body:
    return [f"    {line}" for line in body]


def _loop(head: str) -> Callable[[Body], Body]:
    return lambda body: ["with inside():", *_indented([head, *_indented(body)])]


def _statements(calls: Sequence[str], inner: st.SearchStrategy[Body]) -> st.SearchStrategy[Body]:
    loops = st.sampled_from(["for _ in range(0):", "for _ in range(2):", "for _ in range(3):"]).flatmap(
        lambda head: inner.map(_loop(head))
    )
    branches = st.tuples(st.integers(2, 3), inner, inner).map(
        lambda of: [f"if turn() % {of[0]}:", *_indented(of[1]), "else:", *_indented(of[2])]
    )
    ends = st.sampled_from(["break", "continue"]).map(
        lambda word: [
            "with inside():",
            "    for _ in range(3):",
            f"        if turn() % 2: {word}",
            "        step_point()",
        ]
    )
    simple = st.sampled_from(["point()", "step_point()", *calls]).map(lambda line: [line])
    return st.lists(simple | loops | branches | ends, min_size=1, max_size=4).map(
        lambda parts: [*chain.from_iterable(parts)]
    )


def _body(calls: Sequence[str]) -> st.SearchStrategy[Body]:
    return st.recursive(st.just(["step_point()"]), lambda inner: _statements(calls, inner), max_leaves=8)


@st.composite
def programs(draw: st.DrawFn, *, has_generator: bool) -> str:
    """``main`` calls ``f1`` and ``f2``, and ``f1`` calls ``f2``; a generator is in the middle of its own loop."""
    paused = (
        ["with inside():", "    for _ in range(2):", "        step_point()", "        yield"] if has_generator else []
    )
    uses = _loop("for _ in paused():")(["step_point()"]) if has_generator else []
    parts = [["def paused():", *_indented([*paused, "point()"])]]
    parts.append(["def f2():", *_indented(draw(_body([])))])
    parts.append(["def f1():", *_indented(draw(_body(["f2()"])))])
    parts.append(["def main():", *_indented([*draw(_body(["f1()", "f2()"])), *uses, "point()"])])
    return "\n".join(["\n".join(part) for part in parts] + ["main()", ""])


@pytest.mark.parametrize("has_generator", [False, True])
@given(st.data())
def test_a_loop_that_is_said_to_be_left_was_entered_and_left(
    tmp_path_factory: pytest.TempPathFactory, has_generator: bool, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "any_program.py"
    path.write_text(data.draw(programs(has_generator=has_generator)))
    points = play(path)
    sources = Sources(LATER)
    for at, call in enumerate(points[:-1]):
        for now in points[at + 1 :: 2]:
            frames = now.frames[::-1]
            loops = left_loops([call.frames], Now(frames, len(frames)), sources)
            for loop in loops:
                assert loop.first in call.loops
                assert loop.first not in now.loops
                assert loop.is_nested or not set(call.loops) & set(now.loops)
            if not has_generator and call.loops and not set(call.loops) & set(now.loops):
                assert [loop.first for loop in loops if not loop.is_nested] == [call.loops[0]]


# ---- programs of users


EPOCHS = """
def evaluate():
    point()

def main():
    for epoch in range(2):
        for batch in range(3):
            step_point()
            if batch == 1:
                continue
            point()
        evaluate()
    point()

main()
"""


def test_the_inner_loop_was_left_before_an_evaluation_and_both_after_the_last_one(tmp_path: Path) -> None:
    points = play(program(tmp_path, EPOCHS))
    first_step, first_evaluation, last = points[0], points[5], points[-1]
    assert lines_of(said(first_step, first_evaluation)) == [(7, 11, "main", True)]
    assert lines_of(said(first_step, last)) == [(6, 12, "main", False)]
    assert lines_of(said(first_step, None)) == [(6, 12, "main", False)]
    for now in points[1:5]:  # of the same epoch
        assert said(first_step, now) == ()
    for now in points[6:9]:  # of the next one
        assert said(first_evaluation, now) == ()


HELPERS = """
def average():
    for parameter in range(2):
        point()

def train(epoch):
    for batch in range(2):
        step_point()
        average()
        point()

def main():
    for epoch in range(2):
        train(epoch)
        point()

main()
"""


def test_the_loop_of_a_function_that_has_returned_was_left(tmp_path: Path) -> None:
    step, one, other, logs, *rest = play(program(tmp_path, HELPERS))
    after_epoch = rest[4]
    assert len(after_epoch.frames) == 2
    assert lines_of(said(step, after_epoch)) == [(7, 10, "train", True)]
    assert lines_of(said(one, after_epoch)) == [(7, 10, "train", True)]
    assert said(one, other) == ()
    assert said(one, logs) == (), "it begins again in each step"


@pytest.mark.parametrize(
    "text",
    [
        "def main():\n    for _ in range(1):\n        point()\n    else:\n        point()\nmain()\n",
        "def main():\n    n = 1\n    while n:\n        point()\n        n -= 1\n    point()\nmain()\n",
        "for _ in range(1):\n    with nullcontext(): point()\n\npoint()\n",
        "class A:\n    def fit(self):\n        for _ in range(1):\n            point()\n        point()\nA().fit()\n",
    ],
    ids=["else", "while", "module", "method"],
)
def test_each_kind_of_loop(text: str, tmp_path: Path) -> None:
    call, now = play(program(tmp_path, HEAD + text))
    (loop,) = said(call, now)
    assert loop.last < now.frames[0][1]
    assert (loop.function, loop.is_nested) == (now.frames[0][2], False)


def test_a_comprehension_begins_the_loops_in_it_again(tmp_path: Path) -> None:
    text = """
    def train(epoch):
        for batch in range(1):
            step_point()
        point()

    def main():
        [train(epoch) for epoch in range(2)]

    main()
    """
    call, now, *_ = play(program(tmp_path, text))
    assert [loop.is_nested for loop in said(call, now)] == [True]


def test_a_function_that_waits_for_its_next_turn_has_left_nothing(tmp_path: Path) -> None:
    text = """
    def batches():
        for _ in range(2):
            step_point()
            yield

    def main():
        for _ in batches():
            point()

    main()
    """
    call, now, *_ = play(program(tmp_path, text))
    assert said(call, now) == ()


def test_the_frames_that_a_site_has_no_room_for_are_taken_from_the_stack(tmp_path: Path) -> None:
    depth = sites.MAX_FRAMES + 3
    text = f"""
    def deep(n):
        if n:
            return deep(n - 1)
        for _ in range(1):
            step_point()
        point()

    def main():
        deep({depth})

    main()
    """
    call, now = play(program(tmp_path, text))
    assert len(call.frames) > looks.SITE_FRAMES == sites.MAX_FRAMES
    cut = call._replace(frames=call.frames[: looks.SITE_FRAMES])
    assert said(cut, now) == (), "of a recursion it is not known which of its calls this was"
    names = [f"f{n}" for n in range(depth)]
    calls = "\n".join(f"def {name}(): {later}()" for name, later in zip(names, [*names[1:], "end"], strict=True))
    last = "def end():\n    for _ in range(1):\n        point()\n    point()\n"
    call, now = play(program(tmp_path, f"{calls}\n{last}\nf0()\n"))
    cut = call._replace(frames=call.frames[: looks.SITE_FRAMES])
    assert [loop.function for loop in said(cut, now)] == ["end"]


def test_what_the_latest_call_does_not_show_for_certain_is_not_said(tmp_path: Path) -> None:
    """A site's outer frames are those of the first call through the innermost ones."""
    lines = ["def a(): b()", "def b(): c()", "def c(): d()", "def d(): point()"]
    main = "def main():\n    for _ in range(1):\n        point()\n        a()\n    a()\nmain()\n"
    call, inside, after = play(program(tmp_path, "\n".join([*lines, main])))
    assert said(call, after) != ()
    assert left_loops([call.frames], Now(after.frames[::-1], looks.KEYED), Sources(LATER)) == ()
    assert said(inside, after) != ()


@pytest.mark.parametrize("what", ["changed", "large", "missing", "broken", "pipe", "relative"])
def test_a_source_that_may_not_be_the_programs_says_nothing(what: str, tmp_path: Path) -> None:
    path = program(tmp_path, "for _ in range(1):\n    point()\npoint()\n")
    call, now = play(path)
    sources = Sources(path.stat().st_ctime if what == "changed" else LATER)
    frames = [place for point in (call, now) for place in point.frames]
    if what == "large":
        path.write_text(path.read_text() + "#" * MAX_SOURCE)
    elif what == "broken":
        path.write_text("for _ in (\n    point()\npoint()\n")
    elif what in ("missing", "pipe"):
        path.unlink()
        if what == "pipe":
            os.mkfifo(path)
    elif what == "relative":
        frames = [("train.py", line, name) for _, line, name in frames]
    assert left_loops([frames[:1]], Now(frames[1:], 1), sources) == ()


# ---- with a rank's ring


def test_a_look_at_a_source_that_does_not_answer_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = FollowedRing(tmp_path)
    ring.append(ring.add_group(1), 5)
    answers: list[tuple[ReportedLoop, ...]] = []

    def slow(*_: object) -> tuple[ReportedLoop, ...]:
        until(lambda: answers)
        return answers.pop()

    monkeypatch.setattr(looks, "left_loops", slow)
    watched = LeftLoops(ring.reader, LATER)
    watched.begin("MainThread", "", 10.0, is_over=True)
    assert not watched.is_over(10.1)
    assert watched.is_over(10.0 + looks.LOOK_SECONDS)
    assert watched.found() == ()
    watched.begin("MainThread", "", 20.0, is_over=True)
    answers.append((ReportedLoop("train.py", 1, 2, "main"),))
    until(lambda: watched.is_over(20.0))
    assert watched.found() == (), "it is of an earlier look"
    assert not watched.is_late
    watched.begin("MainThread", "", 30.0, is_over=True)
    assert (watched.found(), watched.is_late) == ((), False)
    answers.append((ReportedLoop("train.py", 1, 2, "main"),))
    until(lambda: watched.is_late)
    assert watched.found() == (ReportedLoop("train.py", 1, 2, "main"),)
    assert not watched.is_late
    watched.begin("MainThread", "", 40.0, is_over=True)
    answers.append((ReportedLoop("train.py", 3, 4, "main"),))
    watched.forget()
    assert watched.found(5.0) == ()
    ring.close()


def test_only_the_calls_of_the_same_thread_count(tmp_path: Path) -> None:
    ring = FollowedRing(tmp_path)
    ring.append(ring.add_group(1), 5)
    assert len(looks.latest_sites(ring.reader, "")) == 1
    assert looks.latest_sites(ring.reader, "saver") == []
    ring.close()
