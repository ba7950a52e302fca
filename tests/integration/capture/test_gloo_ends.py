"""The ends of operations in gloo itself, compared with `otel_fr.operations`."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from otel_fr.operations import ENDS_TOGETHER, ENDS_TOGETHER_ON_DEVICE

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

SIZE = 2


@pytest.fixture(scope="module")
def members() -> Iterator[list[Any]]:
    """Both members of a group, in this process. A call does not block before somebody waits for it."""
    store = dist.HashStore()
    made: list[Any] = [None] * SIZE

    def join(rank: int) -> None:
        gloo = dist.ProcessGroupGloo(store, rank, SIZE, datetime.timedelta(seconds=60))
        made[rank] = group = dist.ProcessGroup(store, rank, SIZE)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)

    with ThreadPoolExecutor(SIZE) as pool:
        list(pool.map(join, range(SIZE)))
    yield made
    made.clear()


def call(group: Any, operation: str) -> Any:
    one, all_ = torch.ones(2), torch.ones(2 * SIZE)
    return {
        "all_reduce": lambda: group.allreduce([one]),
        "all_reduce_coalesced": lambda: group.allreduce_coalesced([one, one.clone()]),
        "all_gather": lambda: group.allgather([[torch.empty(2), torch.empty(2)]], [one]),
        "all_gather_coalesced": lambda: group.allgather_coalesced([[torch.empty(2)], [torch.empty(2)]], [one]),
        "all_gather_into_tensor": lambda: group._allgather_base(all_, one),
        "all_gather_into_tensor_coalesced": lambda: group.allgather_into_tensor_coalesced([all_], [one]),
        "all_to_all_single": lambda: group.alltoall_base(all_, all_.clone(), [], []),
        "barrier": lambda: group.barrier(),
        "reduce_scatter": lambda: group.reduce_scatter([one], [[torch.ones(2), torch.ones(2)]]),
        "reduce_scatter_tensor": lambda: group._reduce_scatter_base(one, all_),
        "reduce_scatter_tensor_coalesced": lambda: group.reduce_scatter_tensor_coalesced([one], [all_]),
    }[operation]()


@pytest.mark.parametrize("operation", sorted(ENDS_TOGETHER - {"all_to_all"}))  # gloo has no all_to_all of lists
def test_gloo_tells_the_end_once_the_last_rank_has_joined(members: list[Any], operation: str) -> None:
    first = call(members[0], operation)
    future = first.get_future()
    assert not future.done()
    call(members[1], operation).wait()
    future.wait()


@pytest.mark.parametrize("operation", sorted(ENDS_TOGETHER_ON_DEVICE - ENDS_TOGETHER))
def test_gloo_does_not_tell_the_end_of_others(members: list[Any], operation: str) -> None:
    works = [call(member, operation) for member in members]
    with pytest.raises(RuntimeError):
        works[0].get_future()
    for work in works:
        work.wait()
