"""Connects torch's operator dispatcher to the compiled recorder."""

from __future__ import annotations

from typing import Any

from otel_fr.capture.native import _ringwriter, batches
from otel_fr.capture.native.library import KernelLibrary
from otel_fr.capture.native.recorder import CompiledRecorder
from otel_fr.capture.replaced import Replacements


class CompiledKernels:
    """otel-fr's compiled kernels in torch's dispatcher."""

    def __init__(self, torch: Any, recorder: CompiledRecorder, library: KernelLibrary) -> None:
        """Install a kernel for each operator of the recorder.

        Raises:
            RuntimeError: torch rejects the kernels, or has none of the operators. Nothing is installed then.
        """
        if not recorder.operators:
            raise RuntimeError("this torch has none of the c10d operators")
        self._library = library
        self._recorder = recorder
        self._replaced = Replacements()
        try:
            library.install(_ringwriter.API, list(recorder.operators.values()))
            recorder.native.activate(True)
            batches.install(torch, recorder, library, self._replaced)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Restore torch's own dispatch."""
        self._replaced.undo()
        self._recorder.native.activate(False)
        self._library.remove()
