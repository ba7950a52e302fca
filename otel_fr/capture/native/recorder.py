"""The recorder of the compiled engine. The C++ part calls Python once for each new group, signature, site or thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from types import CodeType, ModuleType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from otel_fr.capture import split_groups
from otel_fr.capture.definitions import Arguments, unread_arguments
from otel_fr.capture.groups import batch_in
from otel_fr.capture.native import _ringwriter, key
from otel_fr.capture.native.library import KernelLibrary
from otel_fr.capture.native.writer import CompiledRingWriter
from otel_fr.capture.operations import Operator
from otel_fr.capture.recorder import Recorder
from otel_fr.ring.layout import DefinitionKind

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _guarded(
    function: Callable[Concatenate[Handlers, _P], _T],
) -> Callable[Concatenate[Handlers, _P], _T | None]:
    """If the function raises, count the failure and return None. The call is then counted, but not recorded."""

    @wraps(function)
    def guard(self: Handlers, /, *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        try:
            return function(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 - the collective continues
            self.recorder.failed()
            return None

    return guard


class Handlers:
    """Functions that the C++ part calls (misses.cpp): with the GIL, without its own lock, on the enqueuing thread."""

    def __init__(self, recorder: CompiledRecorder, operators: Mapping[int, Operator], library: KernelLibrary) -> None:
        self.recorder = recorder
        self._operators = operators
        self._library = library
        # Keep code objects, so that their addresses are not reused while the C++ part knows them. Another thread may
        # add one after the C++ part has forgotten all and before Python does, so keep it until the next time.
        self._codes: list[CodeType] = []
        self._earlier_codes: list[CodeType] = []

    @_guarded
    def define_group(self, name: str) -> bool | None:
        """Define a group whose members were unknown when torch registered it."""
        return self.recorder.define_late(name) or None

    @_guarded
    def define_signature(
        self, name: str, code: int, words: bytes
    ) -> tuple[int, int, int, int, int, int, bool, int, int, int] | None:
        """Define the signature of a call in the group ``name``. Return the fields of the C++ struct ``Signature``."""
        operator = self._operators[code]
        recorder = self.recorder
        group = recorder.groups.get(name)
        if group is None:
            return None
        process_group = recorder.process_group(name)
        try:
            kind = recorder.kind_of(operator, group, self._arguments(operator, process_group, words), process_group)
        except Exception:  # noqa: BLE001 - the known part of the call is recorded
            recorder.failed()
            kind = recorder.kind_of(operator, group, unread_arguments(operator, process_group), process_group)
        writer = self.recorder.writer
        ref, generation = 0, writer.generation
        if kind.definition is not None:
            ref, generation = writer.define(DefinitionKind.SIGNATURE, kind.definition)
        return (
            ref,
            generation,
            int(kind.mode),
            kind.step,
            kind.op_step,
            kind.timeout_ms,
            kind.coalesces,
            *kind.pair,
        )

    def _arguments(self, operator: Operator, process_group: Any, words: bytes) -> Arguments:
        if key.is_unread(words):
            return unread_arguments(operator, process_group)
        return key.arguments_of(operator, words, self._library.scalar_type, self._library.device_type)

    @_guarded
    def define_site(self, of_main: bool) -> tuple[int, int]:
        """Define the call site of this thread, or of the main thread if ``of_main``."""
        sites = self.recorder.sites
        frame = sys._current_frames().get(threading.main_thread().ident or 0) if of_main else sys._getframe(1)
        return self.recorder.writer.define(DefinitionKind.SITE, sites.describe(sites.user_frame(frame)))

    @_guarded
    def define_thread(self) -> tuple[int, int]:
        """Define this thread."""
        return self.recorder.writer.define_name(threading.get_ident(), threading.current_thread().name)

    @_guarded
    def is_library(self, code: CodeType) -> int:
        """Keep a code object. Return 1 if it is not the user's code."""
        self._codes.append(code)
        return int(self.recorder.sites.is_library(code.co_filename))

    @_guarded
    def forget_codes(self, code: CodeType) -> None:
        """Forget earlier code objects: the C++ part now knows only ``code``."""
        self._codes, self._earlier_codes = [code], self._codes

    @_guarded
    def batch(self, name: str) -> int:
        """Return the number of the coalesced batch that is open in the group, or 0."""
        batch = batch_in(self.recorder.batches, name)
        return 0 if batch is None else batch.number


class CompiledRecorder(Recorder):
    """A `Recorder` that records calls in C++."""

    def __init__(
        self,
        c10d: ModuleType,
        torch: ModuleType,
        writer: CompiledRingWriter,
        libraries: tuple[str, ...],
        operators: Mapping[int, Operator],
        library: KernelLibrary,
    ) -> None:
        """``operators``: the operators that have kernels, by code."""
        self.operators = operators
        self._native: _ringwriter.Recorder | None = None
        super().__init__(c10d, torch, writer, libraries)
        self.writer: Final = writer
        self.batches: Final[dict[Any, Any]] = c10d._world._pg_coalesce_state
        self._native = _ringwriter.Recorder(
            writer.core, Handlers(self, operators, library), self.batches, threading.main_thread().ident or 0
        )

    @property
    def on(self) -> bool:
        """False if calls are not recorded."""
        return self._on

    @on.setter
    def on(self, value: bool) -> None:
        self._on = value
        if self._native is not None:
            self._native.on = value

    @property
    def native(self) -> _ringwriter.Recorder:
        """The C++ part."""
        assert self._native is not None
        return self._native

    # ---- groups

    def _added(self, name: str) -> None:
        self.native.add_group(name)

    def _defined(self, name: str, index: int) -> None:
        self.native.set_index(name, index)

    def _removed(self, name: str, index: int) -> None:
        self.native.remove_group(name)

    def _renumbered(self, before: int) -> None:
        """Does nothing: the C++ part has already removed the former definition."""

    def define_late(self, name: str) -> bool:
        """Define a group at its first call. Return False if the group is not recorded."""
        with self.lock:
            group = self.groups.get(name)
            if group is None:
                return False
            if group.index < 0:
                self._define_group(group, self.process_group(name))
            return True

    def process_group(self, name: str) -> Any:
        """Return torch's ``ProcessGroup`` of that name. Raises RuntimeError if there is none."""
        split = split_groups.find(name)
        return self._types._resolve_process_group(name) if split is None else split

    def outstanding(self) -> int:
        """Return the number of calls whose end a callback waits for.

        The C++ callbacks need no interpreter, but destructors of groups wait for the same calls.
        """
        return self.native.watched

    def close(self) -> None:
        """Stop recording and close the ring. The file stays."""
        self.native.activate(False)
        self.native.close()
        super().close()
