"""What a program sees of failed peers: callbacks, and the error that names the failure."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace

import pytest

import otel_fr
from otel_fr.fault_tolerance.peers import MAX_CALLBACKS, PeerFailedError, PeerFailure, Peers
from tests.support.waiting import PATIENCE, wait_for

FAILURE = PeerFailure((2,), "rank 2 was killed", ("default_pg",), "i1", "ended")
GLOO = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


def test_callbacks_are_called_on_a_thread_of_their_own_also_for_what_is_known_already() -> None:
    peers = Peers()
    seen: list[tuple[str, PeerFailure]] = []
    came = threading.Event()

    def take(failure: PeerFailure) -> None:
        seen.append((threading.current_thread().name, failure))
        if len(seen) == 2:
            came.set()

    peers.deliver(FAILURE)
    peers.subscribe(take)
    other = PeerFailure((3,), "rank 3 is stuck", ("default_pg",), "", "stuck")
    peers.deliver(other)
    assert came.wait(PATIENCE)
    assert [failure for _, failure in seen] == [FAILURE, other]
    assert {name for name, _ in seen}.isdisjoint({threading.current_thread().name})


def test_a_callback_that_hangs_or_raises_disturbs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers()
    release, came = threading.Event(), threading.Event()
    peers.subscribe(lambda _: release.wait(PATIENCE))

    def fail(_: PeerFailure) -> None:
        raise SystemExit(3)

    peers.subscribe(fail)
    left = iter(range(200))
    peers.subscribe(lambda _: came.set() if next(left) == 199 else None)
    for _ in range(200):
        peers.deliver(FAILURE)
    release.set()
    assert came.wait(PATIENCE)
    assert wait_for(lambda: "a callback of on_peer_failure raised" in caplog.text)


def test_a_callback_can_be_cancelled() -> None:
    peers = Peers()
    seen: list[PeerFailure] = []
    cancel = peers.subscribe(seen.append)
    cancel()
    cancel()
    came = threading.Event()
    peers.subscribe(lambda _: came.set())
    peers.deliver(FAILURE)
    assert came.wait(PATIENCE)
    assert seen == []


def test_ranks_that_failed_together_recover_one_by_one() -> None:
    peers = Peers()
    peers.deliver(replace(FAILURE, ranks=(2, 3), reason="node b is silent"))
    peers.withdraw((3,))
    assert peers.failed == {2}
    peers.withdraw((2,))
    assert not peers.failed
    assert peers.ended_by is None


def test_what_is_no_function_and_too_many_are_refused() -> None:
    peers = Peers()
    with pytest.raises(TypeError, match="takes a function, not int"):
        peers.subscribe(3)  # type: ignore[arg-type]
    for _ in range(MAX_CALLBACKS):
        peers.subscribe(print)
    with pytest.raises(RuntimeError, match="64 callbacks are registered"):
        peers.subscribe(print)


def test_the_failure_becomes_the_last_context_of_an_error_of_an_ended_call() -> None:
    peers = Peers()
    assert not peers.explain(RuntimeError(GLOO))  # nothing was ended
    peers.note_ended({"0": FAILURE})
    inner = RuntimeError(GLOO)
    outer = RuntimeError("backward failed: gloo")
    outer.__cause__ = inner
    assert peers.explain(outer)
    assert isinstance(inner.__context__, PeerFailedError)
    assert inner.__context__.failure is FAILURE
    assert peers.explain(outer)  # it has one already
    assert inner.__context__.__context__ is None


def test_an_error_that_has_nothing_to_do_with_it_stays_as_it_is() -> None:
    peers = Peers()
    peers.note_ended({"0": FAILURE})
    for error in (ValueError("gloo"), RuntimeError("CUDA out of memory")):
        assert not peers.explain(error)
        assert error.__context__ is None
    peers.forget_group("0")
    assert not peers.explain(RuntimeError(GLOO))


def test_a_chain_of_errors_that_is_a_cycle_is_explained_in_finite_time() -> None:
    peers = Peers()
    peers.note_ended({"0": FAILURE})
    one, two = RuntimeError(GLOO), RuntimeError(GLOO)
    one.__context__, two.__context__ = two, one
    peers.explain(one)


def test_the_error_names_rank_reason_and_incident_and_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(otel_fr.PeerFailedError(FAILURE)))
    assert str(error) == "a call that waited for rank 2 was ended: rank 2 was killed (incident i1)"
    two = otel_fr.PeerFailedError(replace(FAILURE, ranks=(1, 2), incident_id=""))
    assert str(two) == "a call that waited for ranks 1, 2 was ended: rank 2 was killed"
    assert error.failure == FAILURE
    assert isinstance(error, RuntimeError)
