"""Both capture engines record a program alike."""

from __future__ import annotations

import contextlib
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_fr.capture import engines as capture_engines
from otel_fr.capture.recorder import Recorder
from otel_fr.ring import RecordState, RingReader
from tests.support import engines
from tests.support.both_engines import LIBRARIES, both, engine_of

_WORLD = 4
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn)
_REDUCE = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG, dist.ReduceOp.BXOR)
_SUBGROUPS = ((0, 1), (0, 2, 3))


@pytest.fixture(scope="module", autouse=True)
def groups() -> Iterator[list[Any]]:
    """The default group and the subgroups of this process, on the fake backend."""
    engines.kernel()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=_WORLD)
    made = [dist.group.WORLD, *[dist.new_group(ranks) for ranks in _SUBGROUPS]]
    yield made
    dist.destroy_process_group()


def _tensor(choose: random.Random) -> Any:
    shape = [choose.randrange(4) for _ in range(choose.randrange(3))]
    return torch.empty(shape, dtype=choose.choice(_DTYPES))


def _call(choose: random.Random, group: Any) -> None:
    """Make one call. The fake backend takes any shapes."""
    size = group.size()
    a, b = _tensor(choose), _tensor(choose)
    many = [_tensor(choose) for _ in range(choose.randint(1, 3))]
    lists = [[_tensor(choose) for _ in range(size)]]
    op = choose.choice(_REDUCE)
    asynchronous = choose.random() < 0.3
    timeout = choose.choice([None, 1, 77])
    options = dist.AllreduceOptions()
    options.reduceOp = op
    if timeout is not None:
        options.timeout = torch.distributed.distributed_c10d.timedelta(seconds=timeout)
    coalesced = dist.AllreduceCoalescedOptions()
    coalesced.reduceOp = op
    peer = choose.randrange(1, size)
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(a, op, group, asynchronous),
        lambda: group.allreduce([a], options),
        lambda: group.allreduce_coalesced(many, coalesced),
        lambda: dist.broadcast(a, group_src=choose.randrange(size), group=group),
        lambda: dist.reduce(a, group_dst=choose.randrange(size), op=op, group=group),
        lambda: group.allgather(lists, [a]),
        lambda: group._allgather_base(a, b),
        lambda: group.allgather_into_tensor_coalesced(many, many),
        lambda: group.reduce_scatter([a], lists),
        lambda: group._reduce_scatter_base(a, b),
        lambda: group.reduce_scatter_tensor_coalesced(many, many),
        lambda: group.alltoall(many, many),
        lambda: group.alltoall_base(a, b, [choose.randrange(3) for _ in range(choose.randrange(3))], []),
        lambda: dist.gather(a, lists[0], group_dst=0, group=group),
        lambda: dist.scatter(a, lists[0], group_src=0, group=group),
        lambda: dist.barrier(group),
        lambda: group.send([a], peer, choose.randrange(3)),
        lambda: group.recv([a], peer, choose.randrange(3)),
        lambda: group.recv_anysource([a], choose.randrange(3)),
        lambda: dist.all_reduce(torch.empty(3, device="meta"), group=group),
        lambda: _batch(choose, group),
        lambda: functional.wait_tensor(functional.all_reduce(a, "sum", group)),
    ]
    choose.choice(calls)()


def _batch(choose: random.Random, group: Any) -> None:
    if str(torch.__version__).startswith("2.6."):
        return  # this torch's fake backend has no batches
    with _coalescing_manager(group, torch.device("cpu"), async_ops=True):
        for _ in range(choose.randrange(4)):
            if choose.random() < 0.5:
                group.send([torch.empty(2)], 1, 0)
            else:
                dist.all_gather_into_tensor(torch.empty(2 * group.size()), torch.empty(2), group)


def _program(seed: int, steps: int, groups: list[Any]) -> None:
    choose = random.Random(seed)
    for _ in range(steps):
        with contextlib.suppress(RuntimeError, LookupError, ValueError, TypeError):  # errors of the call itself
            _call(choose, choose.choice(groups))


def _with_destructions(seed: int, steps: int, groups: list[Any], recorder: Recorder) -> None:
    """Run a program that destroys its groups in turn, and makes them again under the same names at the end."""
    choose = random.Random(seed)
    for group in choose.sample(groups, len(groups)):
        _program(choose.randrange(2**32), steps, groups)
        begun = recorder.begin_destruction(group, "destroy_process_group")
        if choose.random() < 0.8:
            recorder.group_gone(group.group_name)
        if begun is not None:  # the call ends or fails after the group is gone
            recorder.end(*begun, 0, choose.choice([RecordState.COMPLETED, RecordState.FAILED]), time.monotonic_ns())
    for group in groups:
        recorder.group_created(group.group_name, group)
    _program(seed, steps, groups)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 120), capacity=st.sampled_from([7, 500]))
def test_random_programs_are_recorded_alike(groups: list[Any], seed: int, steps: int, capacity: int) -> None:
    python, compiled = both(capacity, groups, lambda _: _program(seed, steps, groups))
    assert compiled == python
    assert python[2]["hook_errors"] == 0


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 30), capacity=st.sampled_from([7, 500]))
@settings(max_examples=30)
def test_groups_that_are_destroyed_are_recorded_alike(groups: list[Any], seed: int, steps: int, capacity: int) -> None:
    python, compiled = both(capacity, groups, lambda own: _with_destructions(seed, steps, groups, own))
    assert compiled == python
    assert python[2]["hook_errors"] == 0
    assert any(record["signature"].operation == "destroy_process_group" for record in python[0]) or capacity == 7


def test_threads_are_recorded_alike(groups: list[Any]) -> None:
    def run(_: Recorder) -> None:
        def work(number: int) -> None:
            _program(number, 150, [groups[number]])

        threads = [threading.Thread(target=work, args=(n,), name=f"worker {n}") for n in range(len(groups))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def by_thread(found: Any) -> dict[str, list[Any]]:
        own: dict[str, list[Any]] = {}
        for record in found[0]:
            # Each run has its own threads.
            own.setdefault(record["thread"], []).append({**record, "record_id": None, "thread_ident": None})
        return own

    python, compiled = both(2000, groups, run)
    assert by_thread(compiled) == by_thread(python)
    assert len(by_thread(python)) == len(groups)
    assert compiled[1:] == python[1:]


def test_groups_that_come_and_go_are_told_apart(groups: list[Any]) -> None:
    """A new group may have the address of a destroyed group."""

    def records(engine: capture_engines.Engine, folder: Path) -> list[tuple[str, int]]:
        writer = engine.create_ring([folder], engine.name, 500, {"rank": 0})
        recorder, kernels = engine.start(dist.distributed_c10d, torch, writer, LIBRARIES)
        try:
            for _ in range(30):
                group: Any = dist.new_group([0, 1])
                recorder.group_created(group.group_name, group)
                for _ in range(2):
                    dist.all_reduce(torch.empty(1), group=group)
                recorder.group_gone(group.group_name)
                dist.all_reduce(torch.empty(1), group=group)  # a call of a group that is not recorded
                dist.destroy_process_group(group)
                del group
        finally:
            kernels.remove()
        with RingReader.open(writer.path) as reader:
            found = [(record.group.name, record.coll_seq) for record in reader.records() if record.group]
        recorder.close()
        return found

    for name in (capture_engines.PYTHON, capture_engines.COMPILED):
        with tempfile.TemporaryDirectory() as folder:
            found = records(engine_of(name), Path(folder))
        assert len(found) == 60
        assert [number for _, number in found] == [1, 2] * 30
        assert len({group for group, _ in found}) == 30
