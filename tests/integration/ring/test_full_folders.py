"""Rings where a folder is full or may not be written."""

from __future__ import annotations

import os
from pathlib import Path

from otel_fr.ring import RingWriter
from tests.support.mounts import tmpfs
from tests.support.ring_model import assert_works


def test_a_full_folder_is_passed_over_and_left_clean(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "full", "size=256k") as full:
        writer = RingWriter.create([full, tmp_path], "ring", 100, {})
        assert writer.path == tmp_path / f"otel-fr-{os.geteuid()}" / "ring"
        assert_works(writer)
        assert [path for path in full.rglob("*") if path.is_file()] == []


def test_a_read_only_folder_is_passed_over(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "read_only", "ro") as read_only:
        writer = RingWriter.create([read_only, tmp_path], "ring", 100, {})
        assert writer.path.parent.parent == tmp_path
        assert_works(writer)
