"""Connects torch's operator dispatcher to the compiled recorder."""

from __future__ import annotations

from otel_fr.capture.native import _ringwriter
from otel_fr.capture.native.library import KernelLibrary
from otel_fr.capture.native.recorder import CompiledRecorder
from otel_fr.capture.operations import Operator


class CompiledKernels:
    """otel-fr's compiled kernels in torch's dispatcher."""

    def __init__(self, recorder: CompiledRecorder, library: KernelLibrary, operators: list[Operator]) -> None:
        """Install a kernel for each operator.

        Raises:
            RuntimeError: torch rejects them, or there are none; nothing is installed then.
        """
        if not operators:
            raise RuntimeError("this torch has none of the c10d operators")
        self._library = library
        self._recorder = recorder
        try:
            library.install(_ringwriter.API, operators)
            recorder.native.activate(True)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Restore torch's own dispatch."""
        self._recorder.native.activate(False)
        self._library.remove()
