"""What the rendezvous handler passes on, and what it does when a check fails."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

from otel_fr.checks.model import NODE_FAILED, Result, Status
from otel_fr.rendezvous import handler as module
from otel_fr.rendezvous.handler import CheckedRendezvous
from tests.support.paths import ROOT


class Inner(RendezvousHandler):  # type: ignore[misc]
    settings = "c10d's own"
    use_agent_store = True

    def __init__(self) -> None:
        self.called: list[str] = []

    def get_backend(self) -> str:
        return "c10d"

    def next_rendezvous(self) -> Any:
        self.called.append("next")
        return "info"

    def is_closed(self) -> bool:
        self.called.append("is_closed")
        return True

    def set_closed(self) -> None:
        self.called.append("set_closed")

    def num_nodes_waiting(self) -> int:
        return 3

    def get_run_id(self) -> str:
        return "llama"

    def shutdown(self) -> bool:
        self.called.append("shutdown")
        return True


def result(status: Status) -> list[Result]:
    return [Result("paths", "/data", status, "why", 0.1)]


def test_it_is_the_inner_handler_under_its_own_name() -> None:
    inner = Inner()
    handler = CheckedRendezvous(inner, lambda _: [])
    assert handler.get_backend() == "otel-fr"
    assert handler.next_rendezvous() == "info"
    assert (handler.is_closed(), handler.num_nodes_waiting(), handler.get_run_id()) == (True, 3, "llama")
    assert handler.use_agent_store
    assert handler.settings == "c10d's own"
    handler.set_closed()
    assert handler.shutdown()
    assert inner.called == ["next", "is_closed", "set_closed", "shutdown"]
    with pytest.raises(AttributeError):
        _ = handler.nothing


def test_checks_run_before_each_rendezvous_and_know_which_is_a_restart() -> None:
    restarts: list[bool] = []

    def check(is_restart: bool) -> list[Result]:
        restarts.append(is_restart)
        return result(Status.WARNING)

    handler = CheckedRendezvous(Inner(), check)
    for _ in range(3):
        handler.next_rendezvous()
    assert restarts == [False, True, True]


def test_a_node_that_stays_out_does_not_close_the_rendezvous(capsys: pytest.CaptureFixture[str]) -> None:
    inner = Inner()
    handler = CheckedRendezvous(inner, lambda _: result(Status.FAILED))
    with pytest.raises(SystemExit) as ended:
        handler.next_rendezvous()
    assert ended.value.code == NODE_FAILED
    assert handler.shutdown()
    assert inner.called == []
    assert "paths /data: why" in capsys.readouterr().err


def test_torch_finds_it_and_gives_c10d_all_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "torchrun.handlers"
    (found,) = re.findall(
        rf'\[project.entry-points."{group}"\]\notel-fr = "(.+)"', (ROOT / "pyproject.toml").read_text()
    )
    create = EntryPoint("otel-fr", found, group).load()()
    given: list[Any] = []

    class Registry:
        def create_handler(self, parameters: Any) -> Inner:
            given.append(parameters)
            return Inner()

    monkeypatch.setattr(module, "rendezvous_handler_registry", Registry())
    parameters = RendezvousParameters(
        "otel-fr", "host:1", "llama", 1, 4, "10.0.0.1", join_timeout="7", check_paths="/data"
    )
    assert create(parameters).get_backend() == "otel-fr"
    (own,) = given
    assert own.backend == "c10d"
    assert (own.endpoint, own.run_id, own.min_nodes, own.max_nodes, own.local_addr) == (
        "host:1",
        "llama",
        1,
        4,
        "10.0.0.1",
    )
    assert own.get_as_int("join_timeout") == 7


def test_an_option_that_cannot_be_used_is_an_error_before_anything_starts() -> None:
    parameters = RendezvousParameters("otel-fr", "host:1", "llama", 1, 1, check_timeout="soon")
    with pytest.raises(ValueError, match="--rdzv-conf check_timeout='soon' is not a number"):
        module.create(parameters)
