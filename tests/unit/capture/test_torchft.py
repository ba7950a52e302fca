"""torchft's quorums as runs, and the groups that are noticed: with a stand-in for torchft's module."""

from __future__ import annotations

import inspect
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_fr.capture import torchft
from otel_fr.capture.replaced import Attribute, Replacements
from otel_fr.capture.torchft import Quorum

MEMBERS = ("a:1", "b:2")


def quorum(replica_rank: int, group_rank: int, members: tuple[str, ...] = MEMBERS) -> Quorum:
    return Quorum(
        number=3,
        replica="a",
        replica_rank=replica_rank,
        replicas=2,
        group_rank=group_rank,
        group_size=4,
        members=members,
    )


def test_each_process_of_a_quorum_has_its_own_rank_and_all_have_one_run() -> None:
    runs = [quorum(replica, rank).run("job") for replica in range(2) for rank in range(4)]
    assert [run["rank"] for run in runs] == list(range(8))
    assert len({(run["run_id"], run["world_size"], run["attempt"]) for run in runs}) == 1
    assert quorum(1, 2).ranks == (2, 6)


def test_a_process_that_was_started_again_makes_another_run_and_the_order_of_the_members_does_not() -> None:
    run = quorum(0, 0).run("job")["run_id"]
    assert quorum(0, 0, ("b:2", "a:1")).run("job")["run_id"] == run
    assert quorum(0, 0, ("a:9", "b:2")).run("job")["run_id"] != run


@pytest.mark.parametrize(
    ("configured", "env", "expected"),
    [
        ("llama", {"OTEL_FR_JOB_ID": "llama", "TORCHFT_LIGHTHOUSE": "http://host:1"}, "llama"),
        ("of-torchrun", {"TORCHFT_LIGHTHOUSE": "http://host:29510"}, "torchft-host:29510"),
        ("of-torchrun", {"TORCHFT_LIGHTHOUSE": "http://user:password@host:29510"}, "torchft-host:29510"),
        ("of-torchrun", {}, "of-torchrun"),
        ("", {}, "torchft"),
    ],
)
def test_the_job_is_what_all_replicas_have_in_common(configured: str, env: dict[str, str], expected: str) -> None:
    assert torchft.job_of(configured, env) == expected


class OfTorch:
    """In place of torch's ``ProcessGroup``."""


class OfTorchft(OfTorch):
    """In place of torchft's ``ProcessGroup``."""


class Wrapper(OfTorchft):
    """In place of torchft's ``ProcessGroupWrapper``."""

    def __init__(self, inner: Any) -> None:
        self._pg = inner

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        if rank >= world_size:
            raise ValueError(store_addr, replica_id, quorum_id, group_rank, group_world_size, global_ranks)


def test_only_groups_of_torch_are_noticed_and_the_method_is_restored() -> None:
    module: Any = SimpleNamespace(ProcessGroupWrapper=Wrapper, ProcessGroup=OfTorchft)
    original = Wrapper.configure
    noticed: list[Quorum | None] = []

    def formed(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], _group: Any) -> None:
        noticed.append(Quorum.of(signature.bind(*args, **kwargs).arguments))

    replaced = Replacements()
    assert replaced.put(Attribute.CONFIGURE, module, partial(torchft.noticing, module, lambda: None, formed))
    try:
        Wrapper(OfTorch()).configure("host:1/torchft/7/1", "a", 1, 2, 7, group_rank=1, group_world_size=2)
        Wrapper(OfTorch()).configure("host:1/own", "a", 0, 1)
        Wrapper(Wrapper(OfTorch())).configure("host:1/torchft/7/1", "a", 1, 2, 7)
        with pytest.raises(ValueError, match="host"):
            Wrapper(OfTorch()).configure("host:1/torchft/7/1", "a", 2, 2, 7)
    finally:
        replaced.undo()
    assert Wrapper.configure is original
    first, of_no_quorum = noticed
    assert first is not None
    assert (first.number, first.first_rank, first.ranks, of_no_quorum) == (7, 2, (1, 3), None)


def test_the_client_answers_as_before_and_its_members_are_noted() -> None:
    class Client:
        address = "host:1"

        def _quorum(self, step: int) -> Any:
            return SimpleNamespace(replica_ids=["b:2", "a:1"], step=step)

    class Manager:
        def __init__(self) -> None:
            self._client: Any = Client()

    module: Any = SimpleNamespace(Manager=Manager)
    replaced = Replacements()
    assert replaced.put(Attribute.MANAGER, module, torchft.with_client)
    manager = Manager()
    replaced.undo()
    assert (manager._client._quorum(step=4).step, manager._client.address) == (4, "host:1")
    found = Quorum.of({"quorum_id": 1, "replica_id": "a", "rank": 0, "world_size": 2})
    assert found is not None
    assert found.members == ("b:2", "a:1")
    assert type(Manager()._client) is Client


def test_torchft_is_found_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only beside torch: with a virtual environment on top of a container's packages, it is elsewhere."""
    (tmp_path / "torchft").mkdir()
    (tmp_path / "torchft" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "torchft", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert torchft.folders() == (f"{tmp_path / 'torchft'}/",)
    assert "torchft" not in sys.modules


def test_a_torchft_without_a_place_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchft", SimpleNamespace(__spec__=None))
    assert torchft.folders() == ()
