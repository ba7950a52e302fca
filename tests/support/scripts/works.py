"""A job of two ranks with calls that have a Work without a future. test_works.py runs it under torchrun.

Each rank runs the same random programs under both engines, and writes the records of each engine as text.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.support.both_engines import both, engine_of, recorded

PROGRAMS, STEPS = 12, 25
ENDS = ("wait", "wait in a thread", "wait with a timeout", "poll, then wait")
METHODS = (
    *("get_future", "_get_op_type", "wait", "is_completed", "is_success", "exception", "result", "_source_rank"),
    *("source_rank", "_get_duration", "synchronize", "_get_sequence_number", "block_current_stream", "timeout"),
)


class Program:
    """Random calls. They are the same on both ranks, except which rank sends."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._peer = 1 - dist.get_rank()

    def run(self, _: object) -> None:
        self._choose = random.Random(self._seed)
        self._unmatched = 1000  # tags of receives without a matching send
        steps = (self._reduce_scatter, self._message, self._exchange, self._batch, self._any_source, self._dropped)
        for _ in range(STEPS):
            self._choose.choice(steps)()
        dist.all_reduce(torch.ones(1))  # after it, the Python engine keeps no Work

    def _end(self, work: Any) -> None:
        how = self._choose.choice(ENDS)
        if how == "wait in a thread":
            thread = threading.Thread(target=work.wait)
            thread.start()
            thread.join()
        elif how == "wait with a timeout":
            work.wait(timedelta(seconds=60))
        else:
            if how == "poll, then wait":
                work.is_completed()
            work.wait()

    def _tensor(self) -> torch.Tensor:
        return torch.ones(self._choose.randint(1, 4))

    def _reduce_scatter(self) -> None:
        size = self._choose.randint(1, 4)
        if self._choose.random() < 0.5:
            dist.reduce_scatter_tensor(torch.ones(size), torch.ones(2 * size))
        elif self._choose.random() < 0.5:
            work = dist.reduce_scatter_tensor(torch.ones(size), torch.ones(2 * size), async_op=True)
            self._end(work)
            if self._choose.random() < 0.5:
                work.wait()  # again; a second wait for a message would not return
        elif not str(torch.__version__).startswith("2.6."):  # its gloo has no reduce_scatter of lists
            dist.reduce_scatter(torch.ones(size), [torch.ones(size), torch.ones(size)])

    def _message(self) -> None:
        tensor = self._tensor()
        sender, tag = self._choose.randrange(2), self._choose.randrange(3)
        sends, blocking = dist.get_rank() == sender, self._choose.random() < 0.5
        if not blocking:
            self._end((dist.isend if sends else dist.irecv)(tensor, self._peer, tag=tag))
        elif sends:
            dist.send(tensor, self._peer, tag=tag)
        else:
            dist.recv(tensor, self._peer, tag=tag)

    def _exchange(self) -> None:
        works = [dist.isend(self._tensor(), self._peer), dist.irecv(torch.ones(4), self._peer)]
        self._choose.shuffle(works)
        for work in works:
            self._end(work)

    def _batch(self) -> None:
        tensor = self._tensor()
        batch = [
            dist.P2POp(dist.isend, tensor, self._peer),
            dist.P2POp(dist.irecv, tensor.clone(), self._peer),
        ]
        for work in dist.batch_isend_irecv(batch):
            self._end(work)

    def _any_source(self) -> None:
        tensor = self._tensor()
        if dist.get_rank():
            dist.send(tensor, self._peer, tag=7)
        else:
            assert dist.recv(tensor, tag=7) == self._peer

    def _dropped(self) -> None:
        self._unmatched += 1
        dist.irecv(torch.ones(1), self._peer, tag=self._unmatched)
        dist.reduce_scatter_tensor(torch.ones(1), torch.ones(2), async_op=True)


def as_text(found: Any) -> dict[str, Any]:
    records, progress, counters = found
    return {"records": [str(sorted(record.items(), key=str)) for record in records],
            "progress": str(progress), "counters": counters}  # fmt: skip


def functional_sum(tensor: torch.Tensor) -> float:
    """Return the sum over a functional collective's result. The wait is in C++."""
    operators, group = torch.ops._c10d_functional, dist.group.WORLD
    assert group is not None
    result = operators.reduce_scatter_tensor(tensor, "sum", 2, group.group_name)
    return float(operators.wait_tensor(result).sum().item())


def functional_calls() -> None:
    assert functional_sum(torch.ones(4)) == 4.0
    dist.all_reduce(torch.ones(1))


def tensors_alive() -> int:
    """Return how many tensors are still alive after their Works have ended or vanished."""
    peer = 1 - dist.get_rank()
    tensors = [torch.ones(100) for _ in range(6)]
    references = [weakref.ref(tensor) for tensor in tensors]
    works = [dist.isend(tensors[0], peer), dist.irecv(tensors[1], peer)]
    for work in works:
        work.wait()
    works.append(dist.irecv(tensors[2], peer, tag=99))  # never matched
    works.append(dist.reduce_scatter_tensor(tensors[3][:50], tensors[3], async_op=True))
    dist.reduce_scatter_tensor(tensors[4][:50], tensors[4])
    functional_sum(tensors[5])
    works[-1].wait()
    dist.barrier()
    tensors.clear()
    del work
    works.clear()
    gc.collect()
    dist.barrier()  # gloo's own threads keep a Work until they get the next
    dist.barrier()
    return sum(reference() is not None for reference in references)


def what_the_user_gets() -> dict[str, Any]:
    """Return what a program can see of each Work without a future."""
    peer = 1 - dist.get_rank()
    tensor = torch.ones(2)
    works = {
        "reduce_scatter": dist.reduce_scatter_tensor(torch.ones(1), tensor, async_op=True),
        "send": dist.isend(tensor, peer),
        "recv": dist.irecv(tensor.clone(), peer),
    }
    seen: dict[str, Any] = {}
    for name, work in works.items():
        about: dict[str, Any] = {"type": str(type(work)), "same": dist.Work.unbox(work.boxed()) is work}
        seen[name] = about
        for method in METHODS:
            try:
                result = getattr(work, method)()
                about[method] = str(result > 0 if method == "_get_sequence_number" else result)
            except Exception as error:  # noqa: BLE001 - compared
                about[method] = f"{type(error)}: {error}"
    return seen


def what_is_seen(alive: list[int], seen: list[Any]) -> None:
    alive.append(tensors_alive())
    seen.append(what_the_user_gets())


def main() -> None:
    dist.init_process_group("gloo")
    groups = [dist.group.WORLD]
    result: dict[str, Any] = {"programs": []}
    for seed in range(PROGRAMS):
        result["programs"].append([as_text(found) for found in both(500, groups, Program(seed).run)])
    result["functional"] = [
        [record["state"].name for record in found[0]] for found in both(500, groups, lambda _: functional_calls())
    ]
    alive: list[int] = []
    seen: list[Any] = []
    what_is_seen(alive, seen)  # without otel-fr
    recorded(engine_of("compiled"), 500, groups, lambda _: what_is_seen(alive, seen))
    result["alive"] = alive
    result["seen"] = seen
    Path(sys.argv[1], f"rank{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
