"""Chooses the capture engine of this process: the compiled engine where it can run, else the Python engine.

docs/concepts/how-it-works.md describes both.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from otel_fr.capture.dispatcher import Kernels, operators_of
from otel_fr.capture.recorder import Recorder
from otel_fr.config import Config
from otel_fr.ring import RingWriter

if TYPE_CHECKING:
    from otel_fr.capture.native.dispatcher import CompiledKernels
    from otel_fr.capture.native.library import KernelLibrary
    from otel_fr.capture.native.writer import CompiledRingWriter

_log = logging.getLogger("otel_fr")

PYTHON = "python"
COMPILED = "compiled"


@dataclass(frozen=True, slots=True)
class Engine:
    """How this process records.

    Attributes:
        name: `PYTHON` or `COMPILED`.
        reason: why this engine was chosen, as text for people.
        library: the kernel's library, for the compiled engine.
        lacks_kernel: True if the compiled engine lacks nothing but a kernel.
    """

    name: str
    reason: str
    library: KernelLibrary | None = None
    lacks_kernel: bool = False

    def create_ring(
        self, folders: Sequence[Path], name: str, capacity: int, meta: Mapping[str, object]
    ) -> RingWriter | CompiledRingWriter:
        """See `RingWriter.create`."""
        if self.library is None:
            return RingWriter.create(folders, name, capacity, meta)
        from otel_fr.capture.native.writer import CompiledRingWriter

        return CompiledRingWriter.create(folders, name, capacity, meta)

    def start(
        self, c10d: ModuleType, torch: ModuleType, writer: RingWriter | CompiledRingWriter, libraries: tuple[str, ...]
    ) -> tuple[Recorder, Kernels | CompiledKernels]:
        """Create the recorder and install its kernels.

        Args:
            writer: from `create_ring`.
            libraries: folders whose frames are never user code, each with a trailing separator.

        Raises:
            RuntimeError: torch rejects the kernels, or has none of the operators.
        """
        if self.library is None:
            recorder = Recorder(c10d, torch, writer, libraries)
        else:
            from otel_fr.capture.native.recorder import CompiledRecorder
            from otel_fr.capture.native.writer import CompiledRingWriter

            assert isinstance(writer, CompiledRingWriter)
            by_code = {operator.code: operator for operator, _ in operators_of(torch)}
            recorder = CompiledRecorder(c10d, torch, writer, libraries, by_code, self.library)
        return recorder, self.install(torch, recorder)

    def install(self, torch: ModuleType, recorder: Recorder) -> Kernels | CompiledKernels:
        """Install kernels for a recorder of this engine. Raises RuntimeError as `start` does."""
        if self.library is None:
            return Kernels(torch, recorder)
        from otel_fr.capture.native.dispatcher import CompiledKernels
        from otel_fr.capture.native.recorder import CompiledRecorder

        assert isinstance(recorder, CompiledRecorder)
        return CompiledKernels(torch, recorder, self.library)


def choose(setting: str, torch: ModuleType) -> Engine:
    """Choose the engine for this process.

    Args:
        setting: one of `otel_fr.config.CAPTURE_ENGINES`.
    """
    if setting == PYTHON:
        return Engine(PYTHON, "OTEL_FR_CAPTURE_ENGINE is python")
    return _compiled(torch)


def report(engine: Engine, config: Config) -> None:
    """Log which engine records this rank. Local rank 0 logs a warning if only a kernel is missing, or if the setting
    requires the compiled engine and it cannot run."""
    missed = engine.lacks_kernel or (engine.name == PYTHON and config.capture_engine == COMPILED)
    level = logging.WARNING if missed and config.local_rank == 0 else logging.INFO
    _log.log(level, "otel-fr: the %s engine records this rank (%s)", engine.name, engine.reason)


def _compiled(torch: ModuleType) -> Engine:
    try:
        importlib.import_module("otel_fr.capture.native._ringwriter")
    except ImportError as error:
        return Engine(PYTHON, f"this installation has no compiled ring writer ({error})")
    from otel_fr.capture.native import store
    from otel_fr.capture.native.library import KernelLibrary

    failures = []
    for path, handle in store.candidates(torch):
        try:
            return Engine(COMPILED, str(path), KernelLibrary(path, handle, str(torch.__version__)))
        except OSError as error:
            failures.append(str(error))
    if failures:
        return Engine(PYTHON, "; ".join(failures))
    missing = f"there is no compiled kernel for torch {torch.__version__}: {store.why_missing(torch)}"
    return Engine(PYTHON, f"{missing}; to compile one: otel-fr kernel build", lacks_kernel=True)
