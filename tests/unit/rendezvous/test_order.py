"""The order of nodes by their numbers in the infrastructure."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from otel_fr.checks.settings import SettingsError, node_rank
from otel_fr.rendezvous.order import NodeOrder, positions
from tests.support.waiting import PATIENCE

C10D = RendezvousStoreInfo("c10d-rank-0", 4000)


def agree(numbers: list[int | None]) -> list[RendezvousInfo]:
    """What each node gets, by its rank of c10d."""
    store = dist.HashStore()
    store.set_timeout(datetime.timedelta(seconds=PATIENCE / 4))

    def join(rank: int) -> RendezvousInfo:
        node = NodeOrder(numbers[rank], f"node-{rank}")
        return node.apply(RendezvousInfo(store, rank, len(numbers), C10D), shares_store=True)

    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(join, range(len(numbers))))


def test_nodes_have_the_order_of_their_numbers_and_the_first_has_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeOrder, "_serve", lambda _: 4001)
    found = agree([5, 12, 3])
    assert [(info.rank, info.world_size) for info in found] == [(1, 3), (2, 3), (0, 3)]
    addresses = {(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in found}
    assert addresses == {("node-2", 4001)}


@pytest.mark.parametrize("numbers", [[None, None], [0, 0], [3, 7, None], [9]])
def test_an_order_that_is_that_of_c10d_changes_nothing(numbers: list[int | None]) -> None:
    found = agree(numbers)
    assert [info.rank for info in found] == list(range(len(numbers)))
    assert {info.bootstrap_store_info.master_addr for info in found} == {"c10d-rank-0"}


@given(st.lists(st.none() | st.integers(0, 20), min_size=1))
def test_each_node_has_one_rank_and_nodes_without_a_number_come_last(numbers: list[int | None]) -> None:
    ranks = positions(numbers)
    assert sorted(ranks) == list(range(len(numbers)))
    in_order = [numbers[ranks.index(rank)] for rank in range(len(numbers))]
    known = [number for number in in_order if number is not None]
    assert in_order == sorted(known) + [None] * (len(numbers) - len(known))


@pytest.mark.parametrize(
    ("env", "conf", "number"),
    [
        ({}, {}, None),
        ({"SLURM_PROCID": "7"}, {}, 7),
        ({"JOB_COMPLETION_INDEX": "2"}, {}, 2),
        ({"SLURM_PROCID": "7", "JOB_COMPLETION_INDEX": "2"}, {}, 7),
        ({"SLURM_PROCID": "", "JOB_COMPLETION_INDEX": "2"}, {}, 2),
        ({"SLURM_PROCID": "x"}, {}, None),
        ({"SLURM_PROCID": "7", "OTEL_FR_NODE_RANK": "3"}, {}, 3),
        ({"SLURM_PROCID": "7", "OTEL_FR_NODE_RANK": "3"}, {"node_rank": "0"}, 0),
    ],
)
def test_where_the_number_comes_from(env: dict[str, str], conf: dict[str, object], number: int | None) -> None:
    assert node_rank(env, conf) == number


def test_a_number_that_is_given_and_is_none_is_an_error() -> None:
    with pytest.raises(SettingsError, match="--rdzv-conf node_rank='first' is not a number"):
        node_rank({}, {"node_rank": "first"})
    with pytest.raises(SettingsError, match=r"OTEL_FR_NODE_RANK='1\.5' is not a whole number"):
        node_rank({"OTEL_FR_NODE_RANK": "1.5"})
