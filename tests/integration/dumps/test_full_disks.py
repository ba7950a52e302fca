"""Files on full or read-only disks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from otel_fr.dumps.read import load
from tests.support.mounts import tmpfs
from tests.support.rings import RankRing, signature


def test_a_folder_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    ring = RankRing(tmp_path / "ring", rank=0, world_size=1)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        ring.write(tmp_path / "file" / "sub")
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere: the read-only folder cannot be tried")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        ring.write(closed)


def test_a_full_disk_is_an_error_and_keeps_the_file_before(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=64k") as disk:
        ring = RankRing(tmp_path / "ring", rank=0, world_size=1, capacity=2000)
        ring.call(signature("barrier", ()))
        path = ring.write(disk)
        for size in range(2000):
            ring.call(signature("all_reduce", ((size,),)))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            ring.write(disk)
        assert len(load(path).entries) == 1
        assert [p.name for p in disk.iterdir()] == [path.name]
