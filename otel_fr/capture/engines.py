"""Which capture engine records this process: the compiled one where it can run, else Python.

docs/capture-engines.md describes both.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from otel_fr.capture.dispatcher import Kernels, operators_of
from otel_fr.capture.recorder import Recorder
from otel_fr.config import Config
from otel_fr.ring import RingWriter

if TYPE_CHECKING:
    from otel_fr.capture.native.library import KernelLibrary
    from otel_fr.capture.native.writer import CompiledRingWriter

_log = logging.getLogger("otel_fr")

PYTHON = "python"
COMPILED = "compiled"


class Installed(Protocol):
    """Kernels in torch's dispatcher."""

    def remove(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """How this process records.

    Attributes:
        name: `PYTHON` or `COMPILED`.
        reason: why this one, for people.
        library: of the compiled engine.
        may_build: a compiled kernel is all that is missing.
    """

    name: str
    reason: str
    library: KernelLibrary | None = None
    may_build: bool = False

    def create_ring(
        self, folders: Sequence[Path], name: str, capacity: int, meta: Mapping[str, object]
    ) -> RingWriter | CompiledRingWriter:
        """As `RingWriter.create`."""
        if self.library is None:
            return RingWriter.create(folders, name, capacity, meta)
        from otel_fr.capture.native.writer import CompiledRingWriter

        return CompiledRingWriter.create(folders, name, capacity, meta)

    def start(
        self, c10d: ModuleType, torch: ModuleType, writer: RingWriter | CompiledRingWriter, libraries: tuple[str, ...]
    ) -> tuple[Recorder, Installed]:
        """The recorder and its kernels, installed.

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

    def install(self, torch: ModuleType, recorder: Recorder) -> Installed:
        """Kernels for a recorder of this engine. Raises RuntimeError as `start` does."""
        if self.library is None:
            return Kernels(torch, recorder)
        from otel_fr.capture.native.dispatcher import CompiledKernels
        from otel_fr.capture.native.recorder import CompiledRecorder

        assert isinstance(recorder, CompiledRecorder)
        return CompiledKernels(torch, recorder, self.library)


def choose(setting: str, torch: ModuleType) -> Engine:
    """The engine for this process.

    Args:
        setting: one of `otel_fr.config.CAPTURE_ENGINES`.
    """
    if setting == PYTHON:
        return Engine(PYTHON, "OTEL_FR_CAPTURE_ENGINE is python")
    engine = _compiled(torch)
    if engine.name == PYTHON and setting == COMPILED:
        _log.warning("otel-fr: OTEL_FR_CAPTURE_ENGINE=compiled cannot be met, so Python records: %s", engine.reason)
    return engine


def report(engine: Engine, torch: ModuleType, config: Config) -> None:
    """Log which engine records this rank; where only the kernel is missing, have it compiled. Never raises."""
    reason = engine.reason
    if engine.may_build and config.capture_engine != PYTHON and config.local_rank == 0:
        try:
            from otel_fr.capture.native import background

            done = background.start(torch)
            reason = reason if done in reason else f"{reason}; {done}"
        except Exception as error:  # noqa: BLE001 - the job goes on, with Python
            reason = f"{reason}; it is not compiled: {error}"
    _log.info("otel-fr: the %s engine records this rank (%s)", engine.name, reason)


def outlook(engine: Engine, torch: ModuleType, config: Config) -> str:
    """What becomes of a kernel that is missing, for people; "": nothing is missing, or nobody wants it."""
    if not engine.may_build or config.capture_engine == PYTHON:
        return ""
    from otel_fr.capture.native import background

    obstacle = background.obstacle(torch)
    if not obstacle:
        return "the next rank that starts has one compiled in the background, for the start after that"
    return "" if obstacle in engine.reason else obstacle


def _compiled(torch: ModuleType) -> Engine:
    try:
        importlib.import_module("otel_fr.capture.native._ringwriter")
    except ImportError as error:
        return Engine(PYTHON, f"this installation has no compiled ring writer ({error})")
    from otel_fr.capture.native import store
    from otel_fr.capture.native.library import KernelLibrary

    failures = []
    for path in store.candidates(torch):
        try:
            return Engine(COMPILED, str(path), KernelLibrary(path, str(torch.__version__)))
        except OSError as error:
            failures.append(str(error))
    if failures:
        return Engine(PYTHON, "; ".join(failures))
    missing = f"there is no compiled kernel for torch {torch.__version__}: {store.why_missing(torch)}"
    return Engine(PYTHON, missing, may_build=True)
