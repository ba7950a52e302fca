"""Where files are looked for if no folder is named."""

from __future__ import annotations

import os
from pathlib import Path

from otel_fr.dumps.places import newest_folder


def leave(folder: Path, name: str, written: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"")
    os.utime(folder / name, (written, written))


def test_the_folder_with_the_newest_file_of_a_rank_is_found(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    assert newest_folder(env) is None
    leave(tmp_path / "otel-fr" / "old", "otel_fr_rank_0", 1_000.0)
    leave(tmp_path / "otel-fr" / "new", "otel_fr_rank_1", 2_000.0)
    leave(tmp_path / "otel-fr" / "new", "otel_fr_rank_0", 1_500.0)
    leave(tmp_path / "otel-fr" / "kernels", "kernel.so", 3_000.0)
    leave(tmp_path / "otel-fr", "otel_fr_rank_7", 4_000.0)
    assert newest_folder(env) == (tmp_path / "otel-fr" / "new", 2_000.0)


def test_a_folder_that_is_configured_comes_first(tmp_path: Path) -> None:
    leave(tmp_path / "otel-fr" / "job", "otel_fr_rank_0", 1_000.0)
    leave(tmp_path / "own", "otel_fr_rank_0.json", 500.0)
    env = {"XDG_CACHE_HOME": str(tmp_path), "OTEL_FR_DUMP_DIR": str(tmp_path / "own")}
    assert newest_folder(env) == (tmp_path / "own", 500.0)
    assert newest_folder({**env, "OTEL_FR_DUMP_DIR": str(tmp_path / "empty")}) is None
