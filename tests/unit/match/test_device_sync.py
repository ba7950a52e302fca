"""Threads that wait for their device, as their stacks show it: such a rank waits for what its device waits for.

The stacks are made: without a GPU no thread waits for one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.match import Call, CallState, Category, Finding, Group
from otel_fr.match.facts.stacks import sync_of
from tests.support.evidence import BARRIER, call, judge, rank
from tests.support.verdicts import causes

NUMBER = 7


def answered(*frames: tuple[str, str, str]) -> str:
    """Stacks as a rank answers: (file, function, line of code) of the first thread, innermost last."""
    lines = [f'  File "{file}", line 12, in {name}\n    {source}\n' for file, name, source in frames]
    return (
        "Thread MainThread (most recent call last):\n"
        '  File "train.py", line 90, in <module>\n    main()\n'
        + "".join(lines)
        + '\nThread Thread-7 (most recent call last):\n  File "io.py", line 1, in save\n    loss.item()\n'
    )


def in_line(source: str) -> str:
    return answered(("train.py", "step", source))


def at_signal(file: str, name: str) -> str:
    """Stacks as `faulthandler` writes them."""
    return (
        f'Thread 0x1 (most recent call first):\n  File "{file}", line 9 in {name}\n  File "train.py", line 4 in step\n'
    )


TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
SYNC = answered(("train.py", "step", "torch.cuda.synchronize()"), (f"{TORCH}/cuda/__init__.py", "synchronize", "x()"))


@pytest.mark.parametrize(
    ("stack", "what"),
    [
        (SYNC, "torch.cuda.synchronize"),
        (at_signal(f"{TORCH}/cuda/__init__.py", "synchronize"), "torch.cuda.synchronize"),
        (at_signal(f"{TORCH}/cuda/streams.py", "synchronize"), "torch.cuda: stream or event"),
        (at_signal("/x/torch_npu/npu/streams.py", "synchronize"), "torch.npu: stream or event"),
        (at_signal(f"{TORCH}/distributed/distributed_c10d.py", "barrier"), "torch.distributed.barrier"),
        (at_signal(f"{TORCH}/_tensor_str.py", "_str_intern"), "printing a tensor"),
        (in_line("total += loss.item()"), ".item()"),
        (answered((f"{TORCH}/_tensor.py", "__format__", "return self.item().__format__(spec)")), ".item()"),
        (in_line("return mask.nonzero()"), ".nonzero()"),
        (in_line("x = y.detach().to('cpu')"), '.to("cpu")'),
        (in_line('x = y.to(torch.device("cpu"), non_blocking=False)'), '.to("cpu")'),
        (in_line("x = y.to(device)"), ""),
        (in_line("time.sleep(60)"), ""),
        (answered(("train.py", "step", "loss.item()"), ("data.py", "load", "read(path)")), ""),
        (at_signal("/opt/lightning/cuda.py", "synchronize"), ""),
        (at_signal("train.py", "item"), ""),
        (
            at_signal("train.py", "step")
            + '\nNative stacks, by py-spy:\nThread 1 (idle): "MainThread"\n    cuStreamSynchronize (libcuda.so.1)\n',
            "cuStreamSynchronize",
        ),
        (
            at_signal("train.py", "step")
            + '\nNative stacks, by py-spy:\nThread 1 (idle): "MainThread"\n    read (libc.so.6)\n'
            'Thread 2 (idle): "saver"\n    cuStreamSynchronize (libcuda.so.1)\n',
            "",
        ),
        ("", ""),
    ],
)
def test_what_a_thread_waits_in(stack: str, what: str) -> None:
    assert sync_of(stack) == what


@given(st.text(alphabet="File \"',lineThread(mostrecentcallfirst):\n.item()", max_size=300))
def test_any_text_is_read(text: str) -> None:
    sync_of(text)


def in_sync(rank: int, group: str) -> Call:
    """A call of a device. It is not known whether its rank waits in it."""
    return call(rank, NUMBER, CallState.UNKNOWN, group=group, age=0.0)


PAIRS = (Group("a", "1", "tp", (0, 1)), Group("b", "2", "dp", (0, 1)))


@pytest.mark.parametrize(("stack", "where"), [(SYNC, "device"), (in_line("read(path)"), "host")])
def test_a_rank_that_waits_for_a_device_without_calls_is_blocked_by_the_device(stack: str, where: str) -> None:
    ranks = [rank(0, counts={"a": (7, 6)}), rank(1, counts={"a": (6, 6)}, stack=stack)]
    (found,) = judge([call(0, NUMBER, group="a")], ranks, PAIRS[:1], 2)
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), where)


def test_a_rank_in_a_barrier_that_is_known_to_be_in_flight_waits_for_its_peers() -> None:
    """It has destroyed the group in which another one waits."""
    stack = at_signal(f"{TORCH}/distributed/distributed_c10d.py", "barrier")
    ranks = [rank(0, counts={"a": (7, 6), "b": (6, 6)}), rank(1, counts={"a": (6, 6), "b": (7, 6)}, stack=stack)]
    ranks[1].progress["a"].destroyed = True
    calls = [call(0, NUMBER, group="a"), call(1, NUMBER, signature=BARRIER, group="b")]
    (found,) = causes(judge(calls, ranks, PAIRS, 2))
    assert (found.culprit_ranks, found.stuck_on) == ((1,), None)


def test_a_rank_that_has_moved_since_waits_for_nothing() -> None:
    ranks = [rank(0, counts={"a": (7, 6)}, stack=SYNC), rank(1, counts={"a": (6, 6)})]
    ranks[0].idle = 0.5
    assert judge([in_sync(0, "a")], ranks, PAIRS[:1], 2) == []


def test_ranks_whose_devices_compute_for_long_while_all_wait_for_them_are_healthy() -> None:
    queued = [replace(call(number, NUMBER, group="a"), queued=True) for number in (0, 1)]
    ranks = [rank(number, counts={"a": (7, 6)}, stack=SYNC) for number in (0, 1)]
    assert judge(queued, ranks, PAIRS[:1], 2) == []
    assert judge([in_sync(number, "a") for number in (0, 1)], ranks, PAIRS[:1], 2) == []


Wait = tuple[int, list[tuple[int, ...]], list[int | None]]
"""World size, the groups' ranks, and for each rank the index of the group in which it waits; None: it waits nowhere."""


@st.composite
def waits(draw: st.DrawFn) -> Wait:
    size = draw(st.integers(2, 7))
    members = st.lists(st.integers(0, size - 1), min_size=2, max_size=size, unique=True)
    groups = draw(st.lists(members.map(lambda own: tuple(sorted(own))), min_size=1, max_size=6, unique=True))
    targets: list[int | None] = []
    for number in range(size):
        own = [index for index, group in enumerate(groups) if number in group]
        targets.append(draw(st.sampled_from([*own, None])))
    for index, group in enumerate(groups):
        if all(targets[member] == index for member in group):
            targets[group[0]] = None  # what all have joined waits for no rank
    return size, groups, targets


def verdict(found: Wait, stack_of: Callable[[int], str]) -> list[tuple[object, ...]]:
    """The causes of the graph; a rank with a stack waits in its device's call, another one in a call that blocks."""
    size, members, targets = found
    groups = [Group(f"g{index}", str(index), f"kind{index}", own) for index, own in enumerate(members)]
    calls, ranks = [], []
    for number, target in enumerate(targets):
        stack = stack_of(number) if target is not None else ""
        if target is not None:
            waits = in_sync(number, groups[target].id) if stack else call(number, NUMBER, group=groups[target])
            calls.append(waits)
        counts = {
            group.id: (NUMBER if index == target else NUMBER - 1, NUMBER - 1)
            for index, group in enumerate(groups)
            if number in group.ranks
        }
        ranks.append(rank(number, counts=counts, stack=stack))
    return sorted(map(essence, causes(judge(calls, ranks, groups, size))))


def essence(found: Finding) -> tuple[object, ...]:
    group = found.group.id if found.group is not None else ""
    return found.category.value, found.culprit_ranks, group, found.waiting_ranks


@given(waits(), st.data())
def test_a_wait_through_the_device_names_whom_a_blocking_call_names(found: Wait, data: st.DataObject) -> None:
    through = data.draw(st.sets(st.integers(0, found[0] - 1)))
    stacks = st.sampled_from([SYNC, in_line("loss.item()"), in_line("x.tolist()")])
    chosen = {number: data.draw(stacks) for number in sorted(through)}
    assert verdict(found, lambda number: chosen.get(number, "")) == verdict(found, lambda _: "")


def test_without_the_stack_the_same_wait_names_another_rank() -> None:
    """The property above is not void: rank 1 waits on its device for rank 2, and rank 0 for rank 1."""
    found: Wait = 3, [(0, 1), (1, 2)], [0, 1, None]
    (blocking,) = verdict(found, lambda _: "")
    (seen,) = verdict(found, lambda number: SYNC if number == 1 else "")
    (unseen,) = verdict(found, lambda number: in_line("work()") if number == 1 else "")
    assert blocking[1] == seen[1] == (2,)
    assert unseen[1] == (1,)
