"""Checks GPUs with NVML (the package nvidia-ml-py): whether they answer, and whether their memory is free again."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from otel_fr.checks.model import Outcome, Status

_MIB: Final = 1 << 20
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_DEVICE_FILES: Final = "/dev/nvidia[0-9]*"
_NOT_SUPPORTED: Final = 3
"""NVML_ERROR_NOT_SUPPORTED (nvml.h), the answer of a GPU that uses the host's memory, such as a DGX Spark's."""


def load_nvml() -> Any:
    """Import and start ``pynvml``. Return None if it is not installed.

    Raises:
        Exception: NVML cannot be started (the driver is broken, or has another version than the library).
    """
    try:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    pynvml.nvmlInit()
    return pynvml


def check_gpus(expected: int | None, nvml: Callable[[], Any] = load_nvml) -> Outcome:
    """Check that all GPUs answer, and that there are as many as expected.

    Args:
        expected: number of GPUs; None: any number.
    """
    has_devices = bool(glob.glob(_DEVICE_FILES))
    try:
        library = nvml()
    except Exception as error:  # noqa: BLE001 - NVML has an exception class of its own for each error
        bad = has_devices or expected is not None
        return Outcome(Status.FAILED if bad else Status.SKIPPED, f"NVML cannot be started: {error}")
    if library is None:
        if expected is None:
            return Outcome(Status.SKIPPED, "nvidia-ml-py is not installed" if has_devices else "no GPU here")
        return Outcome(Status.FAILED, f"{expected} expected, and they cannot be counted: nvidia-ml-py is not installed")
    count = int(library.nvmlDeviceGetCount())
    for index in range(count):
        try:
            _used(library, library.nvmlDeviceGetHandleByIndex(index))
        except Exception as error:  # noqa: BLE001 - as above
            return Outcome(Status.FAILED, f"GPU {index} does not answer: {error}")
    if expected is not None and count != expected:
        return Outcome(Status.FAILED, f"{count} found, {expected} expected")
    return Outcome(Status.OK, f"{count} answer")


def check_memory(
    timeout: float,
    tolerance_mb: float,
    poll: float,
    nvml: Callable[[], Any] = load_nvml,
    env: Mapping[str, str] = os.environ,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Wait until no more than ``tolerance_mb`` MiB are in use on each GPU of this node's job.

    The ranks of the previous attempt have been ended, and the driver frees their memory some time later. A rank that
    cannot be ended keeps it.

    Args:
        timeout: seconds after which the check fails.
        poll: seconds between two measurements.
    """
    try:
        library = nvml()
    except Exception as error:  # noqa: BLE001 - NVML has an exception class of its own for each error
        return Outcome(Status.SKIPPED, f"NVML cannot be started: {error}")
    if library is None:
        return Outcome(Status.SKIPPED, "nvidia-ml-py is not installed")
    handles = _visible(library, env.get(_VISIBLE))
    if not handles:
        return Outcome(Status.SKIPPED, "no GPU here")
    end = clock() + timeout
    while True:
        looks = {name: _used(library, handle) for name, handle in handles.items()}
        used = {name: amount for name, amount in looks.items() if amount is not None}
        if not used:
            return Outcome(Status.SKIPPED, "all GPUs here use the host's memory")
        full = {name: amount for name, amount in used.items() if amount > tolerance_mb}
        if not full:
            return Outcome(Status.OK, f"at most {max(used.values()):.0f} MiB in use on {len(used)} GPUs")
        if clock() >= end:
            break
        sleep(min(poll, max(0.0, end - clock())))
    shown = ", ".join(f"GPU {name}: {amount:.0f} MiB{_users(library, handles[name])}" for name, amount in full.items())
    return Outcome(Status.FAILED, f"still in use after {timeout:g} s, over {tolerance_mb:g} MiB: {shown}")


def _visible(library: Any, visible: str | None) -> dict[str, Any]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names by index or UUID, or all GPUs if it is not set."""
    if visible is None:
        return {str(i): library.nvmlDeviceGetHandleByIndex(i) for i in range(int(library.nvmlDeviceGetCount()))}
    found = {}
    for word in filter(None, (word.strip() for word in visible.split(","))):
        try:
            if word.isdigit():
                found[word] = library.nvmlDeviceGetHandleByIndex(int(word))
            else:
                found[word] = library.nvmlDeviceGetHandleByUUID(word)
        except Exception:  # noqa: BLE001 - CUDA ignores an unknown name and all names after it
            break
    return found


def _used(library: Any, handle: Any) -> float | None:
    """Return the MiB in use on a GPU; None: it uses the host's memory."""
    try:
        return float(library.nvmlDeviceGetMemoryInfo(handle).used) / _MIB
    except Exception as error:
        if getattr(error, "value", None) == _NOT_SUPPORTED:
            return None
        raise


def _users(library: Any, handle: Any) -> str:
    try:
        pids = sorted(process.pid for process in library.nvmlDeviceGetComputeRunningProcesses(handle))
    except Exception:  # noqa: BLE001 - not every driver supports this
        return ""
    return f" (processes {', '.join(map(str, pids))})" if pids else ""
