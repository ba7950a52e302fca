"""What the rendezvous handler passes on, and what it does when a check fails."""

from __future__ import annotations

import os
import re
import threading
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

from otel_fr.checks.model import JOB_STOPPED, NODE_EXCLUDED, NODE_FAILED, Result, Status
from otel_fr.checks.settings import AttributionSettings
from otel_fr.config import Config
from otel_fr.rendezvous import handler as module
from otel_fr.rendezvous.advice import Advice, Adviser
from otel_fr.rendezvous.handler import CheckedRendezvous
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE, wait_for


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


def test_ranks_of_all_nodes_are_told_the_round_as_their_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_FR_ATTEMPT", "7")
    inner = Inner()
    handler = CheckedRendezvous(inner, lambda _: [])
    handler.next_rendezvous()
    assert "OTEL_FR_ATTEMPT" not in os.environ
    inner._state_holder = SimpleNamespace(state=SimpleNamespace(round=2))
    handler.next_rendezvous()
    assert os.environ["OTEL_FR_ATTEMPT"] == "2"
    env = {**os.environ, "TORCHELASTIC_RESTART_COUNT": "0"}
    assert Config.from_env(env).attempt == 2


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


def test_nodes_agree_anew_on_the_address_of_the_ranks_store() -> None:
    """Otherwise a node that comes later waits for it for ever, and the others keep the address of one that has left."""

    class Remembering(Inner):
        _bootstrap_store_info: str | None = None

        def next_rendezvous(self) -> Any:
            self.called.append(f"next with {self._bootstrap_store_info}")
            self._bootstrap_store_info = "of the first"
            return "info"

    inner = Remembering()
    handler = CheckedRendezvous(inner, lambda _: [])
    for _ in range(2):
        handler.next_rendezvous()
    assert inner.called == ["next with None"] * 2


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


def advised(recommendation: str, *, is_here: bool = False, run: str = "run-1") -> Advice:
    return Advice(run, 2, recommendation, "why", ("node-b",), is_here)


def asking(mode: str, *answers: Advice | str) -> tuple[Adviser, list[str]]:
    """An adviser with these answers, and the runs it says that it has seen."""
    seen: list[str] = []
    left = list(answers)

    def find(run: str) -> Advice | str:
        seen.append(run)
        return left.pop(0)

    return Adviser(AttributionSettings(mode, 1.0, True), "llama", find), seen


@pytest.mark.parametrize(
    ("advice", "status", "called"),
    [
        (advised("stop"), JOB_STOPPED, ["next", "set_closed"]),
        (advised("exclude_node", is_here=True), NODE_EXCLUDED, ["next"]),
        (advised("exclude_node"), None, ["next", "next", "shutdown"]),
        (advised("restart"), None, ["next", "next", "shutdown"]),
        ("no such run is known", None, ["next", "next", "shutdown"]),
    ],
)
def test_advice_is_followed_before_a_restart_if_that_is_asked_for(
    advice: Advice | str, status: int | None, called: list[str]
) -> None:
    inner = Inner()
    adviser, _ = asking("act", advice)
    handler = CheckedRendezvous(inner, lambda _: [], adviser)
    handler.next_rendezvous()
    if status is None:
        handler.next_rendezvous()
    else:
        with pytest.raises(SystemExit) as ended:
            handler.next_rendezvous()
        assert ended.value.code == status
    handler.shutdown()
    assert inner.called == called


def test_by_default_advice_is_only_shown_and_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    adviser, _ = asking("advise", advised("stop"))
    shown, find = threading.Event(), adviser.find

    def slow(run: str) -> Advice | str:
        shown.wait(PATIENCE)
        return find(run)

    adviser.find = slow
    handler = CheckedRendezvous(Inner(), lambda _: [], adviser)
    assert [handler.next_rendezvous() for _ in range(3)] == ["info"] * 3
    shown.set()
    assert wait_for(lambda: "advises stop: why" in capsys.readouterr().err)


def test_what_was_advised_about_one_run_is_not_advised_again(capsys: pytest.CaptureFixture[str]) -> None:
    adviser, seen = asking(
        "act", advised("restart"), "nothing is known", "nothing is known", advised("stop", run="run-2")
    )
    assert adviser.before_restart() == advised("restart")
    assert [adviser.before_restart() for _ in range(2)] == [None, None]
    assert adviser.before_restart() == advised("stop", run="run-2")
    assert seen == ["", "run-1", "run-1", "run-1"]
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("otel-fr: the collector gives no advice: nothing is known") == 1


def test_nobody_is_asked_without_an_address_a_name_or_the_wish() -> None:
    never = Adviser(AttributionSettings("act", 1.0, False), "llama", lambda _: pytest.fail("asked"))
    assert never.before_restart() is None
    assert Adviser(AttributionSettings("act", 1.0, True), "", never.find).before_restart() is None
    assert Adviser(AttributionSettings("off", 1.0, True), "llama", never.find).before_restart() is None


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
