"""An analysis as pandas data frames. pandas is optional, and imported on first use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.output import overview
from otel_fr.analyze.tables import CALL_COLUMNS, call_chunks, empty_chunk
from otel_fr.encodable import encodable
from otel_fr.incident import FIELDS

if TYPE_CHECKING:
    import pandas

NEEDED = "to_pandas() needs pandas: pip install 'otel-fr[pandas]'"

RANK_COLUMNS = (
    "rank", "role", "ending", "signal", "exit_code", "exception", "site", "host", "node", "pod", "gpu", "pid",
    "local_rank", "calls", "unreadable_calls", "recorder", "file",
)  # fmt: skip
GROUP_COLUMNS = ("group", "name", "description", "size", "ranks")
DEVICE_CALL_COLUMNS = (
    "rank", "group", "communicator", "communicator_name", "communicator_rank", "communicator_size", "operation",
    "number", "sequence_id", "size_bytes", "duration_s", "bus_bandwidth", "timing_source",
)  # fmt: skip
PROGRESS_COLUMNS = ("rank", "group", "enqueued", "completed", "first_recorded", "messages", "behind", "destroyed")

_WHOLE = ("rank", "signal", "exit_code", "pid", "local_rank", "size", "enqueued", "completed", "first_recorded",
          "messages", "behind", "sequence_id", "communicator_rank", "communicator_size", "number",
          "size_bytes")  # fmt: skip
"""Columns of integers that may be missing (pandas' ``Int64``)."""


def data_frames(analysis: Analysis) -> dict[str, pandas.DataFrame]:
    """``calls``, ``ranks``, ``groups``, ``progress``, ``incidents`` and ``device_calls``.

    Raises:
        ModuleNotFoundError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NEEDED, name="pandas") from error
    return {
        "calls": _calls(pd, analysis),
        "ranks": _frame(pd, RANK_COLUMNS, _ranks(analysis)),
        "groups": _frame(pd, GROUP_COLUMNS, _groups(analysis)),
        "progress": _frame(pd, PROGRESS_COLUMNS, _progress(analysis)),
        "incidents": _incidents(pd, analysis),
        "device_calls": _frame(pd, DEVICE_CALL_COLUMNS, _device_calls(analysis)),
    }


def _calls(pd: Any, analysis: Analysis) -> Any:
    chunks = [] if analysis.run is None else list(call_chunks(analysis.run))
    found: dict[str, Any] = {}
    for name, kind in CALL_COLUMNS.items():
        column = np.concatenate([chunk[name] for chunk in chunks] or [empty_chunk()[name]])
        if kind == "time":
            found[name] = pd.Series(column.view("datetime64[ns]")).dt.tz_localize("UTC")
        elif kind == "optional":
            found[name] = pd.array(column, dtype="Int64")
        else:
            found[name] = column
    return pd.DataFrame(found)


def _frame(pd: Any, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> Any:
    made = pd.DataFrame([tuple(map(_clean, row)) for row in rows], columns=list(columns))
    return made.astype({name: "Int64" for name in columns if name in _WHOLE})


def _clean(value: object) -> object:
    return encodable(value) if isinstance(value, str) else value


def _ranks(analysis: Analysis) -> Iterable[tuple[object, ...]]:
    role_of = overview.roles(analysis)
    dumps = {} if analysis.run is None else {dump.rank: dump for dump in analysis.run.dumps}
    for number, rank in analysis.ranks.items():
        dump, place = dumps.get(number), rank.place
        yield (
            number,
            role_of.get(number, ""),
            rank.ending.value,
            rank.signal,
            rank.exit_code,
            rank.exception,
            rank.exception_site or rank.site,
            place.host,
            place.node,
            place.pod,
            place.gpu,
            place.pid,
            place.local_rank,
            0 if dump is None else len(dump.entries),
            0 if dump is None else dump.unusable,
            "" if dump is None else dump.source,
            rank.file,
        )


def _groups(analysis: Analysis) -> Iterable[tuple[object, ...]]:
    for group in analysis.groups.values():
        yield group.id, group.name, group.description, len(group.ranks), list(group.ranks)


def _progress(analysis: Analysis) -> Iterable[tuple[object, ...]]:
    furthest: dict[str, int] = {}
    for rank in analysis.ranks.values():
        for id_, progress in rank.progress.items():
            furthest[id_] = max(furthest.get(id_, 0), progress.enqueued or 0)
    for number, rank in analysis.ranks.items():
        for id_, progress in rank.progress.items():
            enqueued = progress.enqueued
            yield (
                number,
                id_,
                enqueued,
                progress.completed,
                progress.first_recorded,
                progress.messages,
                None if enqueued is None else furthest[id_] - enqueued,
                progress.destroyed,
            )


def _device_calls(analysis: Analysis) -> Iterable[tuple[object, ...]]:
    for call, rank, group, sequence_id in analysis.device_durations.calls:
        part = call.communicator
        yield (
            rank,
            "" if group is None else group.id,
            part.id,
            part.name,
            part.rank,
            part.size,
            call.operation,
            call.number,
            sequence_id,
            call.size,
            call.seconds,
            call.bus_bandwidth,
            call.source,
        )


def _incidents(pd: Any, analysis: Analysis) -> Any:
    rows = [{key: _clean(value) for key, value in incident.items()} for incident in analysis.incidents]
    made = pd.DataFrame(rows, columns=list(FIELDS)).astype({"sequence_id": "Int64"})
    for name in ("started_at", "detected_at", "waiting_since"):
        made[name] = pd.to_datetime(made[name], utc=True)
    return made
