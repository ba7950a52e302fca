"""Differences between versions of torch: operators that otel-fr does not know, and newer kinds of groups."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed import ProcessGroup

from otel_fr.capture.dispatcher import reduce_ops_are_readable
from tests.support import single_rank

pytestmark = pytest.mark.usefixtures("warm")

VERSION = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
READS_REDUCE_OPS = reduce_ops_are_readable(torch)

UNKNOWN = """
session_module.start_monitor = no_monitor
classes = "__torch__.torch.classes.c10d."
GROUP, WORK, OP = (classes + name for name in ("ProcessGroup", "Work", "ReduceOp"))
library = torch.library.Library("c10d", "FRAGMENT")
types = torch._C._distributed_c10d
def work(group):
    return types.ProcessGroup.unbox(group)._get_backend(torch.device("cpu")).allreduce([torch.ones(1)]).boxed()
def operator(schema, function):
    library.define(schema)
    library.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
    return getattr(torch.ops.c10d, schema.partition("(")[0])
fuse = operator(
    f"_fuse_(Tensor output, Tensor[] input_list, Tensor? extra, {GROUP} group, {OP} op, int root, int timeout=-1)"
    f" -> (Tensor, {WORK})",
    lambda output, inputs, extra, group, *_: (output, work(group)),
)
post = operator(f"post(Tensor[] parts, {GROUP} process_group, int dst, int tag) -> {WORK}",
    lambda parts, group, *_: work(group))
many = operator("many(" + ", ".join(f"Tensor t{n}" for n in range(6)) + f", {GROUP} process_group) -> ()",
    lambda *_: None)
nothing = operator(f"nothing({GROUP} process_group, int number) -> ()", lambda *_: None)
start()
world = dist.group.WORLD.boxed()
maximum = torch.classes.c10d.ReduceOp()
"""


@pytest.mark.usefixtures("each_engine")
def test_an_operator_of_unknown_name_is_recorded_from_its_schema(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        UNKNOWN
        + """
dist.all_reduce(torch.ones(2))
fuse(torch.ones(8), [torch.ones(2), torch.ones(3)], None, world, maximum, 3, 5000)
post([torch.ones(2), torch.ones(1)], world, 1, 7)
many(*[torch.ones(n) for n in range(6)], world)
nothing(world, 3)
dist.all_reduce(torch.ones(2))
for record in ring().records():
    known = record.signature
    print(record.coll_seq, record.p2p_seq, record.op_id, known.operation, record.group.name, record.state.name, end=" ")
    print(known.input_sizes, known.output_sizes, known.root, known.peer, known.tag, record.timeout_ms)
print(list(ring().records())[1].signature.reduce_op, ring().counters["hook_errors"])
""",
    )
    lines = out.splitlines()
    assert lines[1:4] == [
        "2 0 2 fuse 0 COMPLETED ((2,), (3,)) ((8,),) 3 None None 5000",
        "2 1 3 send 0 COMPLETED ((2,), (1,)) () None 1 7 0",
        "3 1 4 many 0 COMPLETED ((0,), (1,), (2,), (3,)) ((0,), (1,), (2,), (3,)) None None None 0",
    ]
    assert lines[4].startswith("4 1 5 all_reduce 0 COMPLETED")
    assert lines[5].split()[1] == "0"
    assert lines[5].split()[0] == "sum" or not READS_REDUCE_OPS


@pytest.mark.skipif(VERSION < (2, 14), reason="torch before 2.14 has no gather_into_tensor_")
@pytest.mark.usefixtures("each_engine")
def test_gather_into_tensor(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        """
        session_module.start_monitor = no_monitor
        start()
        with contextlib.suppress(RuntimeError):  # the fake backend and gloo refuse it
            dist.gather_single(torch.ones(2), torch.ones(8), group_dst=0)
        dist.all_reduce(torch.ones(2))
        for record in ring().records():
            known = record.signature
            print(record.coll_seq, known.operation, known.input_sizes, known.output_sizes, known.root, end=" ")
            print(record.state.name)
        print(ring().counters["hook_errors"])
        """,
    )
    assert out.splitlines() == [
        "1 gather_into_tensor ((2,),) ((8,),) 0 FAILED",
        "2 all_reduce ((2,),) ((2,),) None COMPLETED",
        "0",
    ]


@pytest.mark.skipif(VERSION < (2, 14), reason="the fake backend of torch before 2.14 cannot be split")
@pytest.mark.usefixtures("each_engine")
def test_groups_that_only_torchs_cpp_knows(tmp_path: Path) -> None:
    """`ProcessGroup.split_group` registers no group in Python."""
    out = single_rank.succeed(
        tmp_path,
        """
        session_module.start_monitor = no_monitor

        dist.init_process_group("fake", store=dist.HashStore(), rank=2, world_size=4)
        part = dist.group.WORLD.split_group([3, 2, 0], group_desc="a part")
        inner = part.split_group([0, 1], group_name="inner")
        assert dist.group.WORLD.split_group([0, 1]) is None
        for group in (part, part, inner, dist.group.WORLD):
            dist.all_reduce(torch.ones(2), group=group)
        dist.broadcast(torch.ones(2), group_src=0, group=inner)
        for record in ring().records():
            group, new = record.group, record.signature.new_group
            made = "" if new is None else (new.name, new.description, new.ranks) == (
                group.name, group.description, group.ranks) and record.signature.operation
            print(group.name, group.description, group.ranks, record.coll_seq, record.signature.root, made)
        del part, inner, group
        other = dist.group.WORLD.split_group([2, 3], group_name="other")
        print(sorted(hook._state.session.recorder.groups), ring().counters["hook_errors"])
        try:
            dist.group.WORLD.split_group([2, 2])
        except (RuntimeError, ValueError):
            print(list(ring().records())[-1].state.name, len(ring().groups()))
        hook.uninstall()
        """,
    )
    assert out.splitlines() == [
        "0:split:[3, 2, 0] a part (3, 2, 0) 1 None split_group",
        "inner a part:split:0 (3, 2) 1 None split_group",
        "0:split:[3, 2, 0] a part (3, 2, 0) 1 None ",
        "0:split:[3, 2, 0] a part (3, 2, 0) 2 None ",
        "inner a part:split:0 (3, 2) 1 None ",
        "0 default_pg (0, 1, 2, 3) 1 None ",
        "inner a part:split:0 (3, 2) 2 3 ",
        "['0', 'other'] 0",
        "COMPLETED 2",
    ]


@pytest.mark.skipif(not hasattr(ProcessGroup, "split_group"), reason="this torch's groups have no split_group")
@pytest.mark.usefixtures("each_engine")
def test_a_split_group_of_gloo(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        """
        session_module.start_monitor = no_monitor
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        part = dist.group.WORLD.split_group([0], group_name="part")
        for group in (dist.group.WORLD, part, part):
            group.allreduce([torch.ones(2)]).wait()
        for record in ring().records():
            print(record.group.name, record.group.ranks, record.coll_seq, record.signature.backend, record.state.name)
        split = dist.ProcessGroup.split_group
        hook.uninstall()
        print(dist.ProcessGroup.split_group is split)
        """,
    )
    assert out.splitlines() == [
        "part (0,) 1  COMPLETED",
        "0 (0,) 1 gloo COMPLETED",
        "part (0,) 1 gloo COMPLETED",
        "part (0,) 2 gloo COMPLETED",
        "False",
    ]


BACKENDS = {
    "cpu:gloo,cuda:nccl2": ["1 all_reduce gloo gloo,nccl2 COMPLETED"],
    "nccl2": ["RuntimeError", "1 all_reduce nccl2 nccl2 FAILED"],
    "nccl-lazy": ["RuntimeError", "1 all_reduce nccl-lazy nccl-lazy FAILED"],
}
"""Result of a call with a CPU tensor. torch refuses the call if no backend serves the CPU."""


@pytest.mark.skipif(VERSION < (2, 14), reason="torch before 2.14 makes these groups only where there is a GPU")
@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_on_the_cpu_under_newer_backends(tmp_path: Path, backend: str) -> None:
    out = single_rank.succeed(
        tmp_path,
        f"""
        session_module.start_monitor = no_monitor
        dist.init_process_group("{backend}", store=dist.HashStore(), rank=0, world_size=1)
        try:
            dist.all_reduce(torch.ones(3), async_op=True).wait()
        except RuntimeError as error:
            print(type(error).__name__)
        for record in ring().records():
            known = record.signature
            print(record.coll_seq, known.operation, known.backend, record.group.backend, record.state.name)
        print(ring().counters["hook_errors"])
        """,
    )
    assert out.splitlines() == [*BACKENDS[backend], "0"]
