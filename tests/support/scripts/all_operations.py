"""A job of two ranks that uses torch.distributed in every way. test_ops.py runs it under torchrun.

Each rank writes, as JSON, its ring's records of each section, and the records of PyTorch's own recorder.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed._composable.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from otel_fr.capture import hook
from otel_fr.ring import Record, RecordState, RingReader

RESULT: dict[str, Any] = {"sections": {}, "facts": {}}
HAS_RECORDER = hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json")
"""True if PyTorch's own recorder can be read on the CPU; not in 2.6."""
OLD = tuple(int(part) for part in str(torch.__version__).split(".")[:2]) < (2, 13)
"""True if gloo may refuse some of these operations, such as all_to_all of lists in 2.9."""

Section = Callable[[], object]


def reader() -> RingReader:
    session = hook._state.session
    assert session is not None
    return RingReader.open(session._writer.path)


def as_json(record: Record) -> dict[str, Any]:
    signature = record.signature
    return {
        "operation": signature.operation,
        "backend": signature.backend,
        "in": signature.input_sizes,
        "out": signature.output_sizes,
        "in_dtypes": signature.input_dtypes,
        "out_dtypes": signature.output_dtypes,
        "in_bytes": signature.input_bytes,
        "out_bytes": signature.output_bytes,
        "reduce_op": signature.reduce_op,
        "root": signature.root,
        "peer": signature.peer,
        "tag": signature.tag,
        "in_splits": signature.input_splits,
        "out_splits": signature.output_splits,
        "any_source": signature.any_source,
        "seq": record.coll_seq,
        "p2p_seq": record.p2p_seq,
        "op_id": record.op_id,
        "pair_index": record.pair_index,
        "kind": record.kind,
        "flags": record.flags,
        "timeout_ms": record.timeout_ms,
        "state": RecordState(record.state).name,
        "ordered": record.ended_ns is None or record.ended_ns >= record.issued_ns,
        "thread": record.thread,
        "site": record.site.text,
        "frames": len(record.site.frames),
        "group": {
            "id": record.group.id,
            "name": record.group.name,
            "description": record.group.description,
            "ranks": record.group.ranks,
            "backend": record.group.backend,
        },
    }


def torch_entries() -> list[dict[str, Any]]:
    if not HAS_RECORDER:
        return []
    entries: list[dict[str, Any]] = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False)).get(
        "entries", []
    )
    return entries


def settled(ring: RingReader, since: int) -> list[Record]:
    """Return the records from ``since`` on, once no call is in flight (callbacks run in gloo's threads)."""
    deadline = time.monotonic() + 10
    while True:
        records = list(ring.records(since))
        if all(record.state != RecordState.IN_FLIGHT for record in records) or time.monotonic() > deadline:
            return records
        time.sleep(0.001)


def section(name: str, body: Section) -> None:
    ring = reader()
    since = ring.head
    before = len(torch_entries())
    refused = ""
    try:
        body()
    except (RuntimeError, AttributeError) as error:
        if not OLD:
            raise
        refused = repr(error)
    records = settled(ring, since)
    RESULT["sections"][name] = {
        "refused": refused,
        "records": [as_json(record) for record in records],
        "torch": [
            {key: entry[key] for key in ("profiling_name", "collective_seq_id", "op_id", "input_sizes")}
            for entry in torch_entries()[before:]
        ],
    }
    ring.close()


def collectives(rank: int) -> None:
    four = torch.ones(4)
    section("all_reduce", lambda: dist.all_reduce(torch.ones(3, 4), op=dist.ReduceOp.MAX))
    section("broadcast", lambda: dist.broadcast(torch.ones(5, dtype=torch.int64), src=1))
    section("reduce", lambda: dist.reduce(four.double(), dst=1, op=dist.ReduceOp.PRODUCT))
    section("all_gather", lambda: dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2)))
    section("all_gather_into_tensor", lambda: dist.all_gather_into_tensor(torch.ones(8), four))
    section("reduce_scatter", lambda: dist.reduce_scatter(torch.ones(2), [torch.ones(2), torch.ones(2)]))
    section("reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(torch.ones(2), four))
    section("gather", lambda: dist.gather(four, [four.clone(), four.clone()] if rank == 0 else None, dst=0))
    section("scatter", lambda: dist.scatter(four, [four.clone(), four.clone()] if rank == 1 else None, src=1))
    mine = [1, 3] if rank == 0 else [2, 2]
    theirs = [1, 2] if rank == 0 else [3, 2]
    section(
        "all_to_all_single",
        lambda: dist.all_to_all_single(
            torch.ones(sum(theirs)), four, output_split_sizes=theirs, input_split_sizes=mine
        ),
    )
    section("all_to_all", lambda: dist.all_to_all([torch.ones(2), torch.ones(2)], [torch.ones(2), torch.ones(2)]))
    section("barrier", dist.barrier)
    section("monitored_barrier", dist.monitored_barrier)
    section("after_monitored_barrier", lambda: dist.all_reduce(four))
    section("all_reduce_coalesced", lambda: dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)]))
    section("bfloat16", lambda: dist.all_reduce(torch.ones(2, dtype=torch.bfloat16)))

    def manager() -> None:
        with dist.distributed_c10d._coalescing_manager():
            dist.all_reduce(torch.ones(2))
            dist.all_reduce(torch.ones(3))

    section("coalescing_manager", manager)
    section("objects", lambda: dist.all_gather_object([None, None], {"rank": rank}))
    section("object_list", lambda: dist.broadcast_object_list([rank], src=0))
    section("short_timeout", lambda: _all_reduce_with_timeout(torch.ones(2)))
    section("async", lambda: dist.all_reduce(torch.ones(2), async_op=True).wait())


def _all_reduce_with_timeout(tensor: torch.Tensor) -> None:
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=77)
    dist.group.WORLD.allreduce([tensor], options).wait()


def point_to_point(rank: int) -> None:
    peer = 1 - rank
    five = torch.ones(5)

    def plain() -> None:
        for _ in range(2):
            if rank == 0:
                dist.send(five, dst=1, tag=7)
            else:
                dist.recv(five, src=0, tag=7)

    section("send_recv", plain)
    section("any_source", lambda: dist.send(five, dst=1) if rank == 0 else dist.recv(five))
    section("isend", lambda: (dist.isend(five, dst=1) if rank == 0 else dist.irecv(five, src=0)).wait())

    def batch() -> None:
        operations = [dist.P2POp(dist.isend, five, peer), dist.P2POp(dist.irecv, torch.ones(5), peer)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    section("batch", batch)


def libraries(rank: int) -> None:
    four = torch.ones(4)
    world = dist.group.WORLD
    section("functional", lambda: functional.all_reduce(four, "sum", world).sum().item())
    section("functional_gather", lambda: functional.all_gather_tensor(four, 0, world).sum().item())

    def doubled_sum(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", world) + 1

    compiled = torch.compile(doubled_sum, backend="aot_eager", fullgraph=True)

    def run_compiled() -> None:
        RESULT["facts"]["compiled_value"] = compiled(four)[0].item()

    section("compiled", run_compiled)
    torch.manual_seed(0)

    def ddp() -> None:
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        model(torch.ones(3, 4)).sum().backward()  # DDP-LINE

    section("ddp", ddp)

    def fsdp() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
        model(torch.ones(3, 4)).sum().backward()

    section("fsdp2", fsdp)


def groups(rank: int) -> None:
    pair = dist.new_group([1, 0], group_desc="a pair")
    alone = dist.new_group([1])
    section("new_group", lambda: dist.broadcast(torch.ones(2), src=1, group=pair))
    if rank == 1:
        section("alone", lambda: dist.all_reduce(torch.ones(2), group=alone))
    section("world_again", lambda: dist.all_reduce(torch.ones(2)))

    if not hasattr(dist.distributed_c10d, "_register_pg_in_world"):  # as in 2.6, which cannot split groups
        return
    # torch 2.13 refuses split_group on a CPU. This is what it does after the backend's own split.
    store = dist.PrefixStore("parts", dist.distributed_c10d._get_default_store())
    part = dist.ProcessGroup(store, rank, 2)
    backend = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
    part._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    part._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    part._set_group_name("parts")
    part._set_group_desc("a part")
    dist.distributed_c10d._register_pg_in_world(part, "gloo", store, "parts", "cpu:gloo", rank_mapping={0: 0, 1: 1})
    section("split_group", lambda: dist.all_reduce(torch.ones(6), group=part))


def keeps_nothing(rank: int) -> None:
    """Write which objects the recording keeps alive after its collectives."""
    tensors = [torch.ones(1000) for _ in range(3)]
    references = [weakref.ref(tensor) for tensor in tensors]
    dist.all_reduce(tensors[0])
    dist.all_reduce(tensors[1], async_op=True).wait()
    (dist.isend(tensors[2], dst=1) if rank == 0 else dist.irecv(tensors[2], src=0)).wait()
    settled(reader(), 0)
    dist.barrier()  # gloo's own threads keep a Work until they get the next
    dist.barrier()
    tensors.clear()
    gc.collect()
    RESULT["facts"]["tensors_alive"] = sum(reference() is not None for reference in references)


def group_ends(rank: int) -> None:
    group = dist.new_group([0, 1])
    kept = torch.ones(1)  # torch before 2.8 may hang in the group's destructor if gloo's thread has the last reference
    dist.all_reduce(kept, group=group)
    reference = weakref.ref(group)
    live = len(reader().groups())
    dist.destroy_process_group(group)
    del group
    gc.collect()
    RESULT["facts"]["groups_closed"] = live - len(reader().groups())
    RESULT["facts"]["group_alive"] = reference() is not None


def meta_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def body() -> None:
        dist.all_reduce(torch.ones(3, device="meta"))
        with FakeTensorMode():
            dist.all_reduce(torch.ones(3))

    section("meta", body)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    collectives(rank)
    point_to_point(rank)
    libraries(rank)
    groups(rank)
    keeps_nothing(rank)
    group_ends(rank)
    meta_tensors()
    dist.destroy_process_group()
    RESULT["facts"]["first_meta"] = reader().meta
    # Another store: in the same store torch itself may find the first group's addresses.
    again = Path(sys.argv[1], "second-store").resolve()
    dist.init_process_group("gloo", init_method=f"file://{again}", rank=rank, world_size=2)
    kept = torch.ones(2)  # as in `group_ends`
    section("again", lambda: dist.all_reduce(kept))
    ring = reader()
    RESULT["facts"]["meta"] = ring.meta
    RESULT["facts"]["counters"] = ring.counters
    RESULT["facts"]["children"] = _children()
    Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(RESULT))
    dist.destroy_process_group()


def _children() -> str:
    """Return the commands of the child processes, except torch's compiler, which 2.6 starts."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            if int(status.read_text().rpartition(")")[2].split()[1]) != os.getpid():
                continue
            command = status.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode()
            if "torch/_inductor/compile_worker" not in command:
                found.append(command or "zombie")
    return "; ".join(found) or "none"


if __name__ == "__main__":
    main()
