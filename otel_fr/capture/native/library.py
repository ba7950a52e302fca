"""Loads and checks the kernel's library, and calls its functions (kernel.cpp)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from otel_fr.capture.operations import Operator

API_VERSION: Final = 5
"""Version of the interface in api.h."""
_ERROR_ROOM: Final = 2000


class _Operator(ctypes.Structure):
    """``OfrOperator`` of api.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("group", ctypes.c_int32),
        ("timeout", ctypes.c_int32),
        ("reduce_op", ctypes.c_int32),
        ("tensor_count", ctypes.c_int32),
        ("tensors", ctypes.c_int32 * 4),
        ("number_count", ctypes.c_int32),
        ("numbers", ctypes.c_int32 * 3),
        ("list_count", ctypes.c_int32),
        ("lists", ctypes.c_int32 * 2),
    )

    @classmethod
    def of(cls, operator: Operator) -> _Operator:
        numbers = [at for at in (operator.root, operator.peer, operator.tag) if at >= 0]
        lists = [at for at in (operator.output_splits, operator.input_splits) if at >= 0]
        return cls(
            name=operator.name.encode(),
            code=operator.code,
            kind=operator.kind,
            group=operator.group,
            timeout=operator.timeout,
            reduce_op=operator.reduce_op,
            tensor_count=len(operator.tensors),
            tensors=(ctypes.c_int32 * 4)(*operator.tensors),
            number_count=len(numbers),
            numbers=(ctypes.c_int32 * 3)(*numbers),
            list_count=len(lists),
            lists=(ctypes.c_int32 * 2)(*lists),
        )


_libraries: Final[dict[tuple[int, int], ctypes.CDLL]] = {}
"""The libraries that this process has loaded, by device and inode of the file."""


def _loaded(handle: int) -> ctypes.CDLL:
    """Load the library in an open file. The descriptor stays open: the linker identifies the library by its path.

    Raises:
        OSError: the library cannot be loaded.
    """
    status = os.fstat(handle)
    key = status.st_dev, status.st_ino
    if key not in _libraries:
        try:
            _libraries[key] = ctypes.CDLL(f"/proc/self/fd/{handle}")
        except OSError:
            os.close(handle)
            raise
    else:
        os.close(handle)
    return _libraries[key]


class KernelLibrary:
    """A loaded library. It stays loaded until the process ends, because a thread may be in one of its kernels."""

    def __init__(self, path: Path, handle: int, torch_version: str) -> None:
        """Load the library.

        Args:
            handle: descriptor of the file. This function takes ownership of it.
            torch_version: version of the running torch. A part after "+" does not count.

        Raises:
            OSError: the library cannot be loaded, or belongs to another torch or otel-fr.
        """
        self._library = _loaded(handle)
        try:
            self._library.otel_fr_torch_version.restype = ctypes.c_char_p
            found = self._library.otel_fr_torch_version().decode()
            interface = self._library.otel_fr_api_version()
            for name in ("otel_fr_scalar_type", "otel_fr_device_type"):
                getattr(self._library, name).restype = ctypes.c_char_p
        except AttributeError as error:
            raise OSError(f"{path} is not an otel-fr kernel: {error}") from None
        if interface != API_VERSION:
            raise OSError(f"{path} belongs to another version of otel-fr")
        if found.split("+")[0] != torch_version.split("+")[0]:
            raise OSError(f"{path} was compiled for torch {found}, not {torch_version}")
        self.scalar_type = cache(self._scalar_type)
        self.device_type = cache(self._device_type)

    def _scalar_type(self, number: int) -> str:
        name: bytes | None = self._library.otel_fr_scalar_type(number)
        return name.decode() if name else f"dtype {number}"

    def _device_type(self, number: int) -> str:
        name: bytes | None = self._library.otel_fr_device_type(number)
        return name.decode() if name else f"device {number}"

    def install(self, api: int, operators: Sequence[Operator]) -> None:
        """Install a kernel for each operator.

        Args:
            api: address of the recorder's table.

        Raises:
            RuntimeError: torch rejects the kernels. None is installed then.
        """
        table = (_Operator * len(operators))(*[_Operator.of(operator) for operator in operators])
        error = ctypes.create_string_buffer(_ERROR_ROOM)
        failed = self._library.otel_fr_install(
            ctypes.c_void_p(api), table, ctypes.c_size_t(len(operators)), error, ctypes.c_size_t(_ERROR_ROOM)
        )
        if failed:
            raise RuntimeError(error.value.decode("utf-8", "replace"))

    def follow_batches(self) -> bool:
        """Define ``torch.ops.otel_fr.follow_batch``. Return False if this kernel follows no batches."""
        return bool(self._library.otel_fr_follow_batches())

    def drop_batch(self, group: int) -> None:
        """Record that the batch that this thread has begun in a group has failed, because it was not enqueued.

        Args:
            group: the group's index in the ring.
        """
        self._library.otel_fr_drop_batch(ctypes.c_int64(group))

    def remove(self) -> None:
        """Restore torch's own dispatch."""
        self._library.otel_fr_remove()
