"""Flight-recorder files in which anything may stand."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from otel_fr.dumps.read import load_folder


def read_or_refused(files: Sequence[bytes]) -> None:
    """Check that each file gives a dump, or a problem that says what is wrong, and that none ends its reader.

    Many at once: a process that reads files takes longer to start than to read a small one.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"trace_{rank}") for rank in range(len(files))]
        for path, data in zip(paths, files, strict=True):
            path.write_bytes(data)
        dumps, problems = load_folder(folder, "trace_")
    for dump in dumps:
        assert len(list(dump.entries)) == len(dump.entries)
    for problem in problems:
        assert len(problem.text) > 10
        assert "the process that read it ended" not in problem.text
    assert sorted([*(one.path for one in dumps), *(one.path for one in problems)]) == sorted(map(str, paths))
