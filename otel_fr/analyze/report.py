"""An analysis for programs and notebooks: ``otel_fr.analyze.load(path)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.output import screen

if TYPE_CHECKING:
    import pandas


@dataclass(kw_only=True, repr=False)
class Report(Analysis):
    """An `Analysis` that a prompt, a notebook and pandas can show."""

    def to_pandas(self) -> dict[str, pandas.DataFrame]:
        """The files as data frames: ``calls``, ``ranks``, ``groups``, ``progress``, ``incidents`` and
        ``device_calls``.

        docs/guide/analyze.md describes them.

        Raises:
            ModuleNotFoundError: pandas is not installed. The text says how to install it.
        """
        from otel_fr.analyze import frames

        return frames.data_frames(self)

    def __repr__(self) -> str:
        """The verdict and its evidence, on one screen."""
        return screen.to_screen(self)

    def _repr_html_(self) -> str:
        """The verdict and its evidence for notebooks, with the progress of the ranks."""
        return screen.to_cell(self)


load = Report.load
