"""Which restarts of the ranks are no fault, because nodes join."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from otel_fr.config import Config
from otel_fr.monitor.process.ending import Exit
from otel_fr.rendezvous.membership import Membership


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.delenv("OTEL_FR_NODES_CHANGED", raising=False)
    return SimpleNamespace(participants={"a": 0, "b": 1}, wait_list=set())


@pytest.mark.parametrize(
    ("participants", "waiting", "is_told", "is_only"),
    [
        ("ab", "", False, False),
        ("ab", "c", True, True),
        ("a", "bc", True, False),  # b has ended its ranks for c, or because one failed: its own monitors know
        ("a", "b", False, False),  # a rank of b has failed
        ("a", "c", False, False),  # b is lost, and a spare takes its place
    ],
)
def test_ranks_end_for_a_node_that_joins_if_all_others_stay(
    state: SimpleNamespace, participants: str, waiting: str, is_told: bool, is_only: bool
) -> None:
    membership = Membership(SimpleNamespace(_state_holder=SimpleNamespace(state=state)))
    membership.begin()
    path = Config.from_env({**os.environ}).nodes_changed
    state.participants = dict.fromkeys(participants, 0)
    state.wait_list = set(waiting)
    assert membership.look() is is_told
    assert os.path.exists(path) is is_told
    assert Exit(signal=signal.SIGTERM, known=True).is_for_nodes(path) is is_only
    assert not Exit(code=1, known=True).is_for_nodes(path)
    membership.begin()  # the next attempt has not changed
    assert not os.path.exists(os.environ["OTEL_FR_NODES_CHANGED"])
    membership.close()
    assert not os.path.exists(os.path.dirname(path))


def test_without_the_state_of_c10d_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_FR_NODES_CHANGED", raising=False)
    membership = Membership(object())
    membership.begin()
    assert not membership.look()
    assert "OTEL_FR_NODES_CHANGED" not in os.environ
