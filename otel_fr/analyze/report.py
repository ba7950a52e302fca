"""An analysis as programs and notebooks see it: ``otel_fr.analyze.load(path)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from otel_fr.analyze import analysis
from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.output import screen

if TYPE_CHECKING:
    import pandas


@dataclass(kw_only=True, repr=False)
class Report(Analysis):
    """An `Analysis` that a prompt, a notebook and pandas can show."""

    def to_pandas(self) -> dict[str, pandas.DataFrame]:
        """The files as data frames: ``calls``, ``ranks``, ``groups``, ``progress`` and ``incidents``.

        docs/analyze.md lists their columns.

        Raises:
            ModuleNotFoundError: pandas is not installed; the text says how to install it.
        """
        from otel_fr.analyze import frames

        return frames.data_frames(self)

    def __repr__(self) -> str:
        """The verdict and what it rests on, on one screen."""
        return screen.to_screen(self)

    def _repr_html_(self) -> str:
        """The same for notebooks, with the progress of the ranks."""
        return screen.to_cell(self)


def load(
    path: Path | str,
    prefix: str | None = None,
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
    replica_size: int | None = None,
) -> Report:
    """Read a folder of flight-recorder files (or one file) and judge the newest run in it.

    Never raises for what the files hold: files that cannot be used are in `Analysis.problems`.

    Args:
        prefix: only files whose name begins with it.
        workers: processes that read large folders; with more than 1, the calling program must be one that
            `multiprocessing` can start again ("spawn").
        progress: called with (files read, files in all).
        replica_size: ranks of one torchft replica, whose default group numbers its ranks from 0 in each replica.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
    """
    found = analysis.load(path, prefix, workers=workers, progress=progress, replica_size=replica_size)
    return Report(
        path=found.path,
        run=found.run,
        others=found.others,
        findings=found.findings,
        problems=found.problems,
        made_at=found.made_at,
    )
