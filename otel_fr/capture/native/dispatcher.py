"""Connects torch's operator dispatcher to the compiled recorder."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any, Final

from otel_fr.capture.native import _ringwriter
from otel_fr.capture.native.library import KernelLibrary
from otel_fr.capture.native.recorder import CompiledRecorder
from otel_fr.capture.operations import Operator

_FOLLOW: Final = "follow(__torch__.torch.classes.c10d.Work work, int ticket, int group_index, int sequence_id) -> bool"
"""What the kernel calls for a Work that has no future."""


class CompiledKernels:
    """otel-fr's compiled kernels in torch's dispatcher."""

    def __init__(
        self, torch: ModuleType, recorder: CompiledRecorder, library: KernelLibrary, operators: list[Operator]
    ) -> None:
        """Install a kernel for each operator.

        Raises:
            RuntimeError: torch rejects them, or there are none; nothing is installed then.
        """
        if not operators:
            raise RuntimeError("this torch has none of the c10d operators")
        self._library = library
        self._recorder = recorder
        self._follow: Any = torch.library.Library("otel_fr", "FRAGMENT")
        try:
            self._follow.define(_FOLLOW)
            self._follow.impl("follow", recorder.follow, "BackendSelect")
            library.install(_ringwriter.API, operators)
            recorder.native.activate(True)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Restore torch's own dispatch; a failure of torch to do so is ignored."""
        self._recorder.native.activate(False)
        self._library.remove()
        with contextlib.suppress(Exception):
            self._follow._destroy()
