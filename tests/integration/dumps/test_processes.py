"""A file that ends its reader costs only that file, and does no harm to the program that reads it."""

from __future__ import annotations

import copyreg
import errno
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, cast

import pytest

from otel_fr.dumps.processes import read_all
from otel_fr.dumps.read import load, load_folder
from otel_fr.dumps.safe_parse import DEFAULT_LIMITS, Limits, UnreadableDump
from otel_fr.ring import process_state
from tests.support.torch_files import plain_file
from tests.support.waiting import PATIENCE, until

BAD = {
    "time": b"\x80\x02}(K\x01\x85q\x00" + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(80)) + b"Nu.",
    "stack": b"\x80\x02}()" + b"\x85" * 3_000_000 + b"Nu.",
    "memory": b"\x80\x02}r\xff\xff\xff\x7f.",
    "answer": pickle.dumps({"otel_fr": {"rank": 3, "groups": [], "x": ["x" * 250_000] * 100}, "entries": []}),
}
SAID = {
    "time": "takes far longer to read than",
    "stack": "the process that read it ended (signal 11)",
    "memory": "takes far more memory than",
    "answer": "holds far more than",
}


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_files_made_to_end_their_reader_do_not_cost_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr("otel_fr.dumps.read.PARALLEL_BYTES", 0)
    for rank, name in enumerate(BAD):
        (tmp_path / f"trace_{2 * rank}").write_bytes(pickle.dumps(plain_file(), 2))
        (tmp_path / f"trace_{2 * rank + 1}").write_bytes(BAD[name])
    seen: list[tuple[int, int]] = []
    dumps, problems = load_folder(
        tmp_path, limits=Limits(seconds=0.5), workers=workers, progress=lambda done, all_: seen.append((done, all_))
    )
    assert [found.rank for found in dumps] == [0, 2, 4, 6]
    assert [Path(problem.path).name for problem in problems] == ["trace_1", "trace_3", "trace_5", "trace_7"]
    for problem, said in zip(problems, SAID.values(), strict=True):
        assert said in problem.text
    assert seen == [(done, 8) for done in range(1, 9)]


PROGRAM = """
import sys, threading
from otel_fr.dumps.read import load_folder
ended = threading.Event()
threading.Thread(target=ended.wait).start()  # so that the process cannot be forked
dumps, problems = load_folder(sys.argv[1])
print([dump.rank for dump in dumps], [problem.text for problem in problems])
ended.set()
"""


def test_a_program_with_threads_reads_in_a_new_interpreter_that_imports_nothing_of_the_folder(tmp_path: Path) -> None:
    files, here = tmp_path / "files", tmp_path / "here"
    files.mkdir()
    here.mkdir()
    for name in ("json", "pickle", "copyreg", "otel_fr"):
        (here / f"{name}.py").write_text("raise SystemExit('imported')")
    (files / "trace_0").write_bytes(pickle.dumps(plain_file(), 2))
    (files / "trace_1").write_bytes(BAD["memory"])
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, program, files], cwd=here, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.startswith('[0] ["takes far more memory'), done.stderr[-2000:]
    assert done.stderr == ""


def test_without_a_process_a_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> NoReturn:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fail)
    monkeypatch.setattr("otel_fr.dumps.processes.threading.active_count", lambda: 1)
    path = tmp_path / "trace_0"
    path.write_bytes(pickle.dumps(plain_file(), 2))
    with pytest.raises(UnreadableDump, match="cannot start a process to read it"):
        load(path)


def reader_of(path: Path, bound: Callable[[int], None]) -> int:
    return os.getpid()


def kill(reader: int) -> int:
    os.kill(reader, signal.SIGKILL)
    until(lambda: process_state(reader) is None)
    return reader


def test_where_children_are_ignored_a_reader_that_was_killed_is_replaced() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        found = read_all(reader_of, DEFAULT_LIMITS, [Path("one"), Path("two")], 1)
        readers = {kill(cast(int, reader)) for _, reader in found}
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert len(readers) == 2


def test_a_registered_extension_is_not_found(tmp_path: Path) -> None:
    """A pickle can name an object that this program has unpickled before, by its extension number.

    If the program has threads, the reader is no fork of it, and does not know such numbers.
    """
    copyreg.add_extension("os", "getpid", 0x77)
    try:
        assert pickle.loads(b"\x80\x02\x82\x77.") is os.getpid
        path = tmp_path / "trace_0"
        path.write_bytes(b"\x80\x02}\x82\x77)RNs.")
        with pytest.raises(UnreadableDump, match=r"refers to (os|posix)\.getpid|unregistered extension"):
            load(path)
    finally:
        copyreg.remove_extension("os", "getpid", 0x77)
        copyreg.clear_extension_cache()


KILLED = """
import os
import time
from pathlib import Path
from otel_fr.dumps.processes import read_all
from otel_fr.dumps.safe_parse import DEFAULT_LIMITS

def work(path, bound):
    os.write(1, f"{path}\\n".encode())  # one call, so that lines of two readers do not mix
    time.sleep(3600)

list(read_all(work, DEFAULT_LIMITS, [Path("one"), Path("two")], 2))
"""


def test_no_reader_outlives_a_program_that_is_killed() -> None:
    program = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE)
    assert program.stdout is not None
    try:
        assert {program.stdout.readline() for _ in range(2)} == {b"one\n", b"two\n"}
    finally:
        program.kill()
    program.communicate(timeout=PATIENCE)  # ends when the readers have closed the standard output, too
