"""Where the file is put, who may read it, and what happens when a folder cannot take it."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from otel_fr.ring import RingReader, RingWriter
from otel_fr.ring.files import ring_folders
from tests.support.ring_model import assert_works


@pytest.mark.parametrize("umask", [0, 0o777])
def test_only_the_user_may_read_it(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        path = RingWriter.create([tmp_path], "ring", 10, {}).path
    finally:
        os.umask(before)
    assert path == tmp_path / f"otel-fr-{os.geteuid()}" / "ring"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_folder_left_open_by_its_owner_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / f"otel-fr-{os.geteuid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    RingWriter.create([tmp_path], "ring", 10, {})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_is_a_symbolic_link_is_skipped(tmp_path: Path) -> None:
    first, second, elsewhere = tmp_path / "first", tmp_path / "second", tmp_path / "elsewhere"
    for folder in (first, second, elsewhere):
        folder.mkdir()
    (first / f"otel-fr-{os.geteuid()}").symlink_to(elsewhere)
    writer = RingWriter.create([first, second], "ring", 10, {})
    assert writer.path.is_relative_to(second)
    assert list(elsewhere.iterdir()) == []


def test_its_space_is_reserved(tmp_path: Path) -> None:
    path = RingWriter.create([tmp_path], "ring", 5000, {}).path
    found = path.stat()
    assert found.st_blocks * 512 >= found.st_size


def test_folders_that_are_none_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    writer = RingWriter.create([tmp_path / "missing", file, tmp_path], "ring", 100, {})
    assert writer.path.parent.parent == tmp_path
    assert_works(writer)


def test_each_folder_that_failed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(OSError, match="no folder can hold a ring") as caught:
        RingWriter.create([tmp_path / "missing", file], "ring", 100, {})
    assert f"{tmp_path / 'missing'}: No such file" in str(caught.value)
    assert f"{file}: Not a directory" in str(caught.value)
    with pytest.raises(OSError, match="none given"):
        RingWriter.create([], "ring", 100, {})


def test_what_another_process_left_is_kept(tmp_path: Path) -> None:
    first = RingWriter.create([tmp_path], "ring", 10, {"rank": 1})
    second = RingWriter.create([tmp_path], "ring", 10, {"rank": 2})
    assert first.path != second.path
    assert [RingReader.open(writer.path).meta for writer in (first, second)] == [{"rank": 1}, {"rank": 2}]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../up", "a\0b"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        RingWriter.create([tmp_path], name, 10, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("capacity", [0, -1, 2**40])
def test_a_capacity_out_of_range_is_refused(tmp_path: Path, capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity"):
        RingWriter.create([tmp_path], "ring", capacity, {})


def test_meta_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        RingWriter.create([tmp_path], "ring", 10, {"rank": {(1, 2): 3}})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_close_keeps_the_file_and_unlink_removes_it(tmp_path: Path) -> None:
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    assert_works(writer)
    reader = RingReader.open(writer.path)
    writer.close()
    assert writer.path.exists()
    writer.unlink()
    writer.unlink()
    assert not writer.path.exists()
    assert len(list(reader.records())) == 5


def test_the_folder_that_is_given_does_not_change_with_the_working_directory() -> None:
    assert ring_folders(Path("rings")) == [Path.cwd() / "rings"]
