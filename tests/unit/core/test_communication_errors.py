"""Which exceptions are those of communication: as text that was recorded, and at hand."""

from __future__ import annotations

import pytest

from otel_fr.communication_errors import is_communication, is_of_communication, type_name

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"


class DistError(RuntimeError):
    """As torch defines it."""


class DistStoreError(DistError):
    """Its child."""


DistError.__module__ = DistStoreError.__module__ = "torch.distributed"


class TrainerError(RuntimeError):
    """A framework's own."""


class ConfigurationError(ValueError):
    """The same."""


OF_COMMUNICATION = {
    "gloo: a peer has gone": RuntimeError(f"{GLOO}pair.cc:547] Connection closed by peer [127.0.1.1]:59417"),
    "without the path of its source": RuntimeError("Connection closed by peer [127.0.1.1]:59417"),
    "gloo: a peer does not come": RuntimeError(f"{GLOO}unbound_buffer.cc:81] Timed out waiting 1800000ms for recv"),
    "gloo: a group is created": RuntimeError("Gloo connectFullMesh failed with [...] timed out connecting: "),
    "gloo's monitored_barrier": RuntimeError("[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 1000 ms"),
    "wait with a timeout": RuntimeError("Operation timed out!"),
    "NCCL": RuntimeError("NCCL communicator was aborted on rank 1."),
    "NCCL's own name of it": RuntimeError("ncclRemoteError: A call failed possibly due to a network error"),
    "NCCL's watchdog": RuntimeError("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"),
    "the store of an older torch": RuntimeError("Timeout waiting for key: default_pg/0/1 after 300000 ms"),
    "the store": DistStoreError("wait timeout after 300000ms, keys: /1"),
    "whatever it says": DistError("1 of 2"),
    "of a type of its own": TrainerError(f"step 7: {GLOO}pair.cc:547] Connection reset by peer"),
}
OTHERS = {
    "an argument that is wrong": RuntimeError("ProcessGroupGloo::allreduce: invalid tensor type at index 1"),
    "a backend that is not there": RuntimeError("Distributed package doesn't have NCCL built in"),
    "one that names a backend": ValueError("unknown backend gloo"),
    "a data loader": RuntimeError("DataLoader timed out after 5 seconds"),
    "a worker of it": RuntimeError("DataLoader worker (pid 7) is killed by signal: Aborted. "),
    "the device": RuntimeError("CUDA error: an illegal memory access was encountered"),
    "another connection": ConnectionResetError("Connection closed by peer"),
    "another timeout": TimeoutError("Timed out waiting for the lock"),
    "a signal": KeyboardInterrupt(),
}


def recorded(error: BaseException) -> str:
    return f"{type_name(type(error))}: {error}"


@pytest.mark.parametrize("name", [*OF_COMMUNICATION, *OTHERS])
def test_which_are_of_communication(name: str) -> None:
    error = (OF_COMMUNICATION | OTHERS)[name]
    assert is_of_communication(error) is is_communication(recorded(error)) is (name in OF_COMMUNICATION)


def test_a_type_of_a_framework_counts_as_text_by_what_it_says() -> None:
    """Only of an exception at hand it is known that it is no RuntimeError."""
    error = ConfigurationError("unknown backend gloo")
    assert not is_of_communication(error)
    assert is_communication(recorded(error))


@pytest.mark.parametrize("text", ["", "RuntimeError", "RuntimeError: ", "ValueError", ": gloo"])
def test_texts_without_a_message(text: str) -> None:
    assert is_communication(text) is text.endswith("gloo")
