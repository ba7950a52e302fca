"""The compiled recorder without torch: called through its table of functions, as a kernel calls it."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.capture.native.writer import CompiledRingWriter
from otel_fr.ring import GroupDef, Record, RingReader, SiteDef
from otel_fr.ring.layout import DefinitionKind
from tests.support.engines import needs_ring_writer
from tests.support.ring_model import signature_of
from tests.support.waiting import wait_for

pytestmark = needs_ring_writer

HERE = __file__


class _Call(ctypes.Structure):
    """``OfrCall`` of api.h."""

    _fields_ = (
        ("group", ctypes.c_char_p),
        ("group_length", ctypes.c_size_t),
        ("key", ctypes.POINTER(ctypes.c_uint64)),
        ("key_words", ctypes.c_size_t),
        ("timeout_ms", ctypes.c_int64),
        ("code", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
    )


class _Pending(ctypes.Structure):
    """``OfrPending`` of api.h, as far as it is used here, and room for the rest."""

    _fields_ = (
        ("recorder", ctypes.c_void_p),
        ("ticket", ctypes.c_uint64),
        ("group_index", ctypes.c_int64),
        ("sequence", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 8),
    )


class _Ending(ctypes.Structure):
    """Room for ``OfrEnding`` of api.h."""

    _fields_ = (("all", ctypes.c_uint64 * 8),)


class Rig:
    """A recorder, and the handlers that it asks."""

    def __init__(self, folder: Path) -> None:
        from otel_fr.capture.native import _ringwriter

        self.writer = CompiledRingWriter.create([folder], "ring", 20_000, {"rank": 0})
        self.asked: list[str] = []
        self.codes: list[CodeType] = []
        self.fail = ""
        self.native = _ringwriter.Recorder(self.writer.core, self, {}, threading.main_thread().ident or 0)
        self.native.add_group("g")
        self.native.set_index("g", self.writer.add_group(GroupDef("0" * 16, "g", "", (0,), "gloo", 0)))
        self.native.activate(True)
        table = ctypes.cast(_ringwriter.API, ctypes.POINTER(ctypes.c_void_p))
        function = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(_Call), ctypes.POINTER(_Pending), ctypes.POINTER(_Ending)
        )
        self._begin = function(table[2] or 0)

    def call(self, *key: int) -> int:
        """Record a call; ctypes lets go of the GIL meanwhile. Returns its ticket; 0: it is not recorded."""
        words = (ctypes.c_uint64 * len(key))(*key)
        pending = _Pending()
        described = _Call(b"g", 1, words, len(key), 0, 7, 0)
        made = self._begin(ctypes.byref(described), ctypes.byref(pending), ctypes.byref(_Ending()))
        return int(pending.ticket) if made else 0

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """A thread records calls meanwhile, one after the other, without the GIL in between."""
        key = (ctypes.c_uint64 * 1)(1)
        described, pending = _Call(b"g", 1, key, 1, 0, 7, 0), _Pending()
        left = ctypes.c_size_t(2**62)
        search = ctypes.CDLL(None).lfind  # calls a function until it returns 0: this one returns 1 for a recorded call
        arguments = (ctypes.byref(described), ctypes.byref(pending), ctypes.byref(left), ctypes.c_size_t(0))

        def site() -> None:
            search(*arguments, self._begin)

        thread = threading.Thread(target=site)
        before = self.writer.head
        thread.start()
        assert wait_for(lambda: self.writer.head > before + 1000)
        try:
            yield
        finally:
            left.value = 0
            thread.join()

    def records(self) -> list[Record]:
        with RingReader.open(self.writer.path) as reader:
            return list(reader.records())

    def close(self) -> None:
        self.native.activate(False)
        self.native.close()
        self.writer.close()

    # ---- what C++ asks

    def _note(self, what: str) -> None:
        self.asked.append(what)
        if self.fail == what:
            raise ValueError("a handler's own error")

    def define_signature(self, group: str, code: int, key: bytes) -> tuple[int, ...]:
        self._note("signature")
        ref, generation = self.writer.define(DefinitionKind.SIGNATURE, signature_of(key[0], 100))
        return ref, generation, 3, 1, 1, 0, 0, 0, 2, 5

    def define_site(self, of_main: bool) -> tuple[int, int]:
        self._note("main site" if of_main else "site")
        frame: Any = sys._current_frames()[threading.main_thread().ident or 0] if of_main else sys._getframe(1)
        while self.is_library(frame.f_code):
            frame = frame.f_back
        return self.writer.define(
            DefinitionKind.SITE, SiteDef(((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name),))
        )

    def define_thread(self) -> tuple[int, int]:
        self._note("thread")
        return self.writer.define_name(threading.get_ident(), threading.current_thread().name)

    def is_library(self, code: CodeType) -> int:
        self.codes.append(code)
        return int(code.co_filename != HERE or code.co_name in ("call", "run", "_bootstrap", "define_site"))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def _line() -> int:
    return sys._getframe(1).f_lineno


def test_a_hit_asks_nothing(rig: Rig) -> None:
    for _ in range(50):
        rig.call(1, 2, 3)
    assert rig.asked == ["signature", "site", "thread"]
    assert [record.coll_seq for record in rig.records()] == list(range(1, 51))


def test_call_sites_are_lines_of_the_user(rig: Rig) -> None:
    """On every Python whose frames are read, and for every kind of frame."""
    lines: list[tuple[str, int]] = []

    def plain() -> None:
        rig.call(1); lines.append(("plain", _line()))  # fmt: skip  # noqa: E702

    def generator() -> Iterator[int]:
        rig.call(1); lines.append(("generator", _line()))  # fmt: skip  # noqa: E702
        yield 1

    def with_callback(function: Callable[[], object]) -> None:
        sorted([2, 1], key=lambda _: bool(function()))

    async def coroutine() -> None:
        rig.call(1); lines.append(("coroutine", _line()))  # fmt: skip  # noqa: E702

    for _ in range(2):
        plain()
        list(generator())
        with pytest.raises(StopIteration):
            coroutine().send(None)
    with_callback(plain)
    seen = [(record.site.frames[0][2], record.site.frames[0][1]) for record in rig.records()]
    assert seen == lines
    assert rig.asked.count("site") == 4  # the plain function has two callers


def _user(source: str) -> Callable[..., Any]:
    """The function `site` of this source, as if it were in this file."""
    scope: dict[str, Any] = {}
    exec(compile(source, HERE, "exec"), scope)
    return cast(Callable[..., Any], scope["site"])


def run(rig: Rig, key: int, depth: int) -> int:
    """Library code: so many frames between the user's and the call."""
    return run(rig, key, depth - 1) if depth else rig.call(key)


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from((0, 1, 2, 35, 50)), st.integers(1, 4)), max_size=60))
def test_in_any_order_each_call_has_its_own_line(rig: Rig, program: list[tuple[int, int, int]]) -> None:
    """The same arguments from several lines, through one wrapper at several depths."""
    lines = "".join(f"    if line == {line}: run(rig, key, depth)\n" for line in (1, 2, 3))
    site = _user("def site(run, rig, line, depth, key):\n" + lines)
    before = len(rig.records())
    for line, depth, key in program:
        site(run, rig, line, depth, key)
    made = rig.records()[before:]
    assert [(record.site.frames[0][1] - 1, record.signature.input_sizes) for record in made] == [
        (line, signature_of(key, 100).input_sizes) for line, _, key in program
    ]


def test_more_sites_than_are_remembered(rig: Rig) -> None:
    lines = range(1, 700)
    source = "def site(line, call):\n" + "".join(f"    if line == {n}: call(1)\n" for n in lines)
    site = _user(source)
    for _ in range(2):
        for line in lines:
            site(line, rig.call)
    assert [record.site.frames[0][1] - 1 for record in rig.records()] == [*lines, *lines]
    assert rig.asked.count("site") == len(lines)


@pytest.mark.parametrize("what", ["signature", "site", "thread"])
def test_an_error_of_a_handler_costs_the_record_not_the_number(rig: Rig, what: str) -> None:
    rig.fail = what
    assert rig.call(1) == 0
    rig.fail = ""
    assert rig.call(1) == 1
    (record,) = rig.records()
    assert (record.coll_seq, record.op_id) == (2, 2)
    with RingReader.open(rig.writer.path) as reader:
        assert reader.counters["dropped"] == reader.counters["hook_errors"] == 1


def test_what_a_signal_handler_raises_reaches_the_program(rig: Rig) -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    rig.define_site = interrupted  # type: ignore[method-assign, assignment]

    def program() -> None:
        rig.call(1)
        while True:  # until Python looks for what is pending
            pass

    with pytest.raises(KeyboardInterrupt):
        program()
    with RingReader.open(rig.writer.path) as reader:
        assert reader.counters["hook_errors"] == 0
