"""Stacks of ranks, merged by the place where their main threads are."""

from __future__ import annotations

import time

from otel_fr.match.facts.stacks import MAX_FRAMES, MAX_GROUPS, group_stacks, groups_of
from otel_fr.match.finding import StackGroup


def traceback_of(function: str, *, other: str = "run", thread: str = "MainThread") -> str:
    """Stacks as a rank answers."""
    return (
        f"Thread {thread} (most recent call last):\n"
        '  File "train.py", line 40, in <module>\n    main()\n'
        f'  File "train.py", line 9, in {function}\n    step()\n'
        "\nThread Thread-7 (most recent call last):\n"
        f'  File "threading.py", line 100, in {other}\n'
    )


def faulthandler_of(function: str, address: str) -> str:
    """Stacks as `faulthandler` writes them, main thread first."""
    return (
        "The process is stopped by a signal.\n"
        f"Thread {address} (most recent call first):\n"
        f'  File "train.py", line 9 in {function}\n'
        '  File "train.py", line 40 in <module>\n'
        f"\nThread 0x00007f (most recent call first):\n"
        '  File "threading.py", line 100 in run\n'
    )


HERE = ("train.py:40 <module>", "train.py:9 wait")
THERE = ("train.py:40 <module>", "train.py:9 load")


def test_a_thousand_ranks_are_here_and_one_is_there() -> None:
    stacks = {rank: traceback_of("wait", other=f"run{rank}", thread=f"{rank}") for rank in range(1_024)}
    stacks[17] = traceback_of("load")
    groups = group_stacks(stacks.items())
    assert groups == (StackGroup(tuple(r for r in range(1_024) if r != 17), HERE), StackGroup((17,), THERE))


def test_both_forms_of_stacks_are_merged() -> None:
    texts = [traceback_of("wait"), faulthandler_of("wait", "0x00007f01"), faulthandler_of("wait", "0x00007f02")]
    assert group_stacks(enumerate(texts)) == (StackGroup((0, 1, 2), HERE),)


def test_a_traceback_alone_is_a_place() -> None:
    text = 'Traceback (most recent call last):\n  File "train.py", line 9, in load\nValueError: bad\n'
    assert group_stacks([(3, text)]) == (StackGroup((3,), ("train.py:9 load",)),)


def test_text_without_frames_is_no_place() -> None:
    assert group_stacks([(0, ""), (1, "The process is stopped by a signal."), (2, "Thread 1\n")]) == ()


def test_bounds() -> None:
    many = [(rank, traceback_of(f"f{min(rank, 40)}")) for rank in range(50)]
    groups = group_stacks(many)
    assert len(groups) == MAX_GROUPS
    assert groups[0].ranks == tuple(range(40, 50))
    deep = (
        "Thread 1 (most recent call last):\n" + '  File "a.py", line 1, in deep\n' * 500 + '  File "a.py", line 2, in x'
    )
    assert group_stacks([(0, deep)])[0].frames == ("a.py:1 deep",) * (MAX_FRAMES - 1) + ("a.py:2 x",)


def test_one_stack_alone_is_not_grouped() -> None:
    stacks = {1: traceback_of("load"), 2: ""}
    assert groups_of([1, 2, 3], stacks) == ()
    assert [group.ranks for group in groups_of([3, 1], {**stacks, 3: traceback_of("wait")})] == [(1,), (3,)]


def test_ten_thousand_ranks_take_a_fraction_of_a_second() -> None:
    text = traceback_of("wait") + "\n".join(traceback_of(f"g{i}") for i in range(100))
    start = time.process_time()
    group_stacks((rank, text + str(rank)) for rank in range(10_000))
    assert time.process_time() - start < 5
