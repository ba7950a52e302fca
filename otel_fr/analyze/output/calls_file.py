"""``--output`` to .csv or .parquet: one table, the calls, with the columns of ``to_pandas()["calls"]``.

The calls are written file by file, so that memory does not grow with the job.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.output.replacing import replacing
from otel_fr.analyze.tables import CALL_COLUMNS, Chunk, Kind, call_chunks, empty_chunk
from otel_fr.dumps.columns import NONE

CSV, PARQUET = ".csv", ".parquet"
_FORMULA = re.compile(r"[\t\r\n]*[=+\-@]")
"""The beginning of a text that a spreadsheet would evaluate as a formula (OWASP, CSV injection)."""
PARQUET_NEEDED = "needs pyarrow: pip install 'otel-fr[parquet]'"


def write_calls(analysis: Analysis, path: Path) -> None:
    """Write the calls to ``path`` atomically, replacing an existing file. The suffix must be `CSV` or `PARQUET`.

    Raises:
        OSError: the file cannot be written.
        ModuleNotFoundError: pyarrow, which Parquet needs, is not installed.
    """
    with replacing(path) as temporary:
        if path.suffix.lower() == PARQUET:
            _write_parquet(analysis, temporary)
        else:
            _write_csv(analysis, temporary)


def _chunks(analysis: Analysis) -> Iterator[Chunk]:
    return iter(()) if analysis.run is None else call_chunks(analysis.run)


def _write_csv(analysis: Analysis, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(CALL_COLUMNS)
        for chunk in _chunks(analysis):
            columns = [_csv_column(chunk[name], kind) for name, kind in CALL_COLUMNS.items()]
            rows.writerows(zip(*columns, strict=True))


def _csv_column(column: Any, kind: Kind) -> list[Any]:
    """Format a column. Times become RFC 3339 in UTC with nanoseconds, and unknown values empty fields. A ``'`` is put
    before formulas."""
    if kind == "time":
        texts = np.datetime_as_string(column.view("datetime64[ns]"), unit="ns").tolist()
        return ["" if time == NONE else f"{text}Z" for time, text in zip(column.tolist(), texts, strict=True)]
    if kind == "number":
        return ["" if value != value else value for value in column.tolist()]
    values: list[Any] = column.tolist()
    if kind == "text":  # a job's files may contain any names
        return [f"'{value}" if value and _FORMULA.match(value) else value for value in values]
    return values


def _write_parquet(analysis: Analysis, path: Path) -> None:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    types = {
        "integer": arrow.int64(),
        "number": arrow.float64(),
        "optional": arrow.int64(),
        "text": arrow.string(),
        "time": arrow.timestamp("ns", "UTC"),
    }
    schema = arrow.schema([(name, types[kind]) for name, kind in CALL_COLUMNS.items()])
    with parquet.ParquetWriter(path, schema) as writer:
        for chunk in _chunks(analysis) if analysis.run is not None else (empty_chunk(),):
            columns = [_arrow_column(arrow, chunk[name], kind, types[kind]) for name, kind in CALL_COLUMNS.items()]
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))


def _arrow_column(arrow: Any, column: Any, kind: Kind, type_: Any) -> Any:
    missing = column == NONE if kind == "time" else np.isnan(column) if kind == "number" else None
    return arrow.array(column, type_, mask=missing)
