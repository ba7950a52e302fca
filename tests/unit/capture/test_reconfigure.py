"""Which re-formed groups are a new run, and that each group has its own rounds: with stand-ins for torch."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from otel_fr.capture import hook, reconfigure
from otel_fr.capture.replaced import C10D
from otel_fr.fault_tolerance.agreement import Decision


class Group:
    """In place of torch's default group: this process is rank 2 of 3."""

    supports_reconfigure = True

    def rank(self) -> int:
        return 2

    def size(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("rounds", "nonces"),
    [
        ([(0, 1, 2)], [""]),
        ([None, (0, 1, 2)], [""]),
        ([None, (0, 2)], [f"{7:016x}"]),
        ([(0, 1, 2), (0, 1, 2)], ["", f"{7:016x}"]),
    ],
)
def test_a_group_of_other_members_is_a_new_run(
    rounds: list[tuple[int, ...] | None], nonces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, left, found = Group(), [*rounds], list[str]()
    world = SimpleNamespace(pg_group_ranks={})
    c10d = SimpleNamespace(is_initialized=lambda: True, _get_default_group=lambda: group, _world=world)
    monkeypatch.setitem(sys.modules, C10D, c10d)

    def run_round(c10d: Any, group: Any, life: Any, *_: object) -> Decision | None:
        life.rounds += 1
        members = left.pop(0)
        return None if members is None else Decision(7, members, ())

    monkeypatch.setattr(reconfigure, "_round", run_round)
    monkeypatch.setattr(hook, "group_reconfigured", lambda _, nonce: found.append(nonce))
    while left:
        rank, size = reconfigure.reconfigure(1.0, 1)
    assert found == nonces
    assert (rank, size) == (len(rounds[-1] or ()) - 1, len(rounds[-1] or ()))


class Single(Group):
    """In place of a default group of this process alone."""

    group_name = "0"

    def __init__(self, handle: str) -> None:
        self.get_reconfigure_handle = lambda: handle

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


def test_a_group_that_is_created_again_agrees_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of torchrun's agent still has what the destroyed group, which had the same name, has agreed on."""
    dist = pytest.importorskip("torch.distributed")
    store, formed = dist.HashStore(), list[tuple[str, ...]]()
    monkeypatch.setattr(hook, "group_reconfigured", lambda *_: None)

    def form(_: object, decision: Decision) -> bool:
        formed.append(decision.handles)
        return True

    monkeypatch.setattr(reconfigure, "_form", form)
    for group in (Single("first"), Single("second")):
        world = SimpleNamespace(pg_group_ranks={}, pg_map={group: ("gloo", store)})
        c10d = SimpleNamespace(
            is_initialized=lambda: True,
            _get_default_group=lambda group=group: group,
            _world=world,
            PrefixStore=dist.PrefixStore,
        )
        monkeypatch.setitem(sys.modules, C10D, c10d)
        assert reconfigure.reconfigure(5.0, 1) == (0, 1)
    assert formed == [("first",), ("second",)]
