"""Flight-recorder files with arbitrary content."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from otel_fr.dumps.read import load_folder
from tests.support.waiting import PATIENCE


def read_or_refused(files: Sequence[bytes]) -> None:
    """Check that each file gives a dump or a clear problem, and that none ends the reading process.

    Pass many files at once: the reading process takes longer to start than to read a small file.
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


_READER = """
import resource, sys
from otel_fr.dumps.read import load
from otel_fr.dumps.safe_parse import Limits, UnreadableDump
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for path in sys.argv[2:]:
    try:
        print("read", len(list(load(path, Limits(seconds=float(sys.argv[1]))).entries)))
    except UnreadableDump as error:
        print("refused:", error)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def outcomes(folder: Path, files: Mapping[str, bytes], seconds: float = 5.0) -> tuple[dict[str, str], int]:
    """Load the files in one process, which must end in time. Return its result for each file, and its memory in KiB.

    Args:
        seconds: CPU time for one file, as in `Limits`.
    """
    paths = [folder / f"trace_{rank}" for rank in range(len(files))]
    for path, data in zip(paths, files.values(), strict=True):
        path.write_bytes(data)
    command = [sys.executable, "-c", _READER, str(seconds), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    *said, peak = done.stdout.splitlines()
    return dict(zip(files, said, strict=True)), int(peak)
