"""A rank that ends by an error of its device is a cause; those that NCCL ends because of that are victims."""

from __future__ import annotations

from signal import SIGABRT, SIGKILL

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Rank
from otel_fr.match.facts.ranks import is_device_error
from tests.support.evidence import WINDOW, blamed, call, rank

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nSearch for ..."
UNHANDLED = (
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'misaligned address'"
)
REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network"
    " error, NCCL version 2.27.3\nncclRemoteError: A call failed possibly due to a network error or a remote process"
    " exiting prematurely."
)
ABORTED = "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1."


@pytest.mark.parametrize(
    ("exception", "is_own"),
    [
        (ILLEGAL, True),
        (UNHANDLED, True),
        ("RuntimeError: CUDA error: device-side assert triggered", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("RuntimeError: HIP error: the operation cannot be performed", True),
        (
            "torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
            False,
        ),
        (REMOTE, False),
        (ABORTED, False),
        ("ValueError: bad sample", False),
        ("", False),
    ],
)
def test_which_exceptions_are_of_the_own_device(exception: str, is_own: bool) -> None:
    assert is_device_error(exception) is is_own


def in_it(number: int, exception: str = "", signal: int | None = None) -> Rank:
    info = rank(number, 7, 6)
    if exception or signal:
        info.ending = Ending.RAISED if exception else Ending.KILLED
        info.exception, info.signal, info.idle, info.ended_for = exception, signal, None, 0.0
    return info


def all_in_it(age: float, state: CallState = CallState.IN_FLIGHT) -> list[Call]:
    duration = age if state is CallState.FAILED else None
    return [call(number, 7, state, age=age, duration=duration, timeout=600.0) for number in range(4)]


@pytest.mark.parametrize("age", [WINDOW / 4, 9 * WINDOW])
@pytest.mark.parametrize("error", [ILLEGAL, UNHANDLED])
@pytest.mark.parametrize("state", [CallState.IN_FLIGHT, CallState.UNKNOWN, CallState.FAILED])
def test_an_error_of_a_device_in_a_collective_that_all_joined_is_the_cause(
    age: float, error: str, state: CallState
) -> None:
    assert blamed(all_in_it(age, state), [in_it(0), in_it(1), in_it(2, error), in_it(3)], size=4) == [
        (Category.RANK_DEAD, (2,))
    ]


@pytest.mark.parametrize("age", [WINDOW / 4, 9 * WINDOW])
@pytest.mark.parametrize(
    ("exception", "signal"),
    [(REMOTE, None), (ABORTED, None), ("", int(SIGABRT))],
    ids=["remote", "told", "watchdog"],
)
@pytest.mark.parametrize(("error", "killed"), [(ILLEGAL, None), ("", int(SIGKILL))], ids=["illegal access", "killed"])
def test_ranks_that_nccl_ends_for_it_are_victims(
    age: float, exception: str, signal: int | None, error: str, killed: int | None
) -> None:
    ranks = [
        in_it(0, exception, signal),
        in_it(1, exception, signal),
        in_it(2, error, killed),
        in_it(3, exception, signal),
    ]
    assert blamed(all_in_it(age), ranks, size=4) == [(Category.RANK_DEAD, (2,))]


def test_ranks_of_which_none_ended_in_another_way_are_named_together() -> None:
    """Which of them was the first is not known."""
    assert blamed(
        all_in_it(WINDOW / 4), [in_it(0, REMOTE), in_it(1), in_it(2, "", int(SIGABRT)), in_it(3)], size=4
    ) == [(Category.RANK_DEAD, (0, 2))]


def test_errors_of_several_devices_are_causes_each() -> None:
    assert blamed(all_in_it(WINDOW / 4), [in_it(0), in_it(1, ILLEGAL), in_it(2, ILLEGAL), in_it(3)], size=4) == [
        (Category.RANK_DEAD, (1, 2))
    ]
