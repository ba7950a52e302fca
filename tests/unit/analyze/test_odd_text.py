"""A lone surrogate, as Python makes of a byte that is not UTF-8, in any text of a file: every output is written."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otel_fr.analyze.analysis import Analysis, load
from otel_fr.analyze.output.database import write_database
from otel_fr.analyze.output.entries_table import entries_text
from otel_fr.analyze.output.markdown import to_markdown
from otel_fr.analyze.output.otlp_traces import span_batches
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.page import to_html
from otel_fr.analyze.output.terminal import show
from otel_fr.analyze.output.text import to_json, to_text
from otel_fr.ring import RecordState
from tests.support.rings import RankRing, float_signature
from tests.support.torch_files import one_missing

VIEW = View(verbose=True, stacks=True)
ODD = "\udcff"


def pytorch_files(folder: Path) -> dict[str, Any]:
    return {path.name: pickle.loads(path.read_bytes()) for path in one_missing(folder, 2, 1).iterdir()}


def own_files(folder: Path) -> dict[str, Any]:
    raised = {"type": "ValueError", "message": "m", "stack": 'File "/job/a.py", line 1, in f', "site": "/job/a.py:1 f"}
    for rank in range(2):
        ring = RankRing(folder / "rings", rank, 2)
        ring.call(float_signature())
        if rank == 0:
            ring.call(float_signature(), state=RecordState.IN_FLIGHT)
        ring.write(folder, "json", **({"exit_code": 1, "exception": raised, "stack": raised["stack"]} if rank else {}))
    return {path.name: json.loads(path.read_bytes()) for path in folder.glob("trace_*.json")}


FORMS: dict[str, tuple[Callable[[Path], dict[str, Any]], Callable[[Any], bytes]]] = {
    "pytorch": (pytorch_files, lambda data: pickle.dumps(data, 2)),
    "own": (own_files, lambda data: json.dumps(data).encode()),
}


def texts(data: object) -> Iterator[str]:
    """Every text, keys included."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from texts(key)
            yield from texts(value)
    elif isinstance(data, list | tuple):
        for item in data:
            yield from texts(item)


def replaced(data: Any, old: str, new: str) -> Any:
    """The same data with another text wherever this one stands."""
    if isinstance(data, dict):
        return {replaced(key, old, new): replaced(value, old, new) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)([replaced(item, old, new) for item in data])
    return new if isinstance(data, str) and data == old else data


def write_everything(analysis: Analysis, folder: Path) -> None:
    """Every output, encoded as it is written."""
    for text in (to_text(analysis, VIEW), to_markdown(analysis, VIEW), to_html(analysis, VIEW)):
        text.encode(errors="backslashreplace")
    json.loads(to_json(analysis).encode(errors="backslashreplace"))
    entries_text(analysis, VIEW).encode(errors="backslashreplace")
    show(analysis, VIEW, Console(file=io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")))
    if analysis.run is not None:
        for name in ("calls.json", "calls.sqlite", "calls"):
            (folder / name).unlink(missing_ok=True)
            write_database(analysis, folder / name)
    for batch in span_batches(analysis):
        for resource in batch:
            resource.SerializeToString()


@pytest.mark.parametrize(("form", "everywhere"), [("pytorch", True), ("pytorch", False), ("own", False)])
def test_a_lone_surrogate_in_any_text_costs_no_output(tmp_path: Path, form: str, everywhere: bool) -> None:
    make, dump = FORMS[form]
    files = make(tmp_path / "sound")
    folder, output = tmp_path / "odd", tmp_path / "output"
    folder.mkdir()
    output.mkdir()
    found = sorted(set(texts(list(files.values()))))
    assert len(found) > 20
    faults = 0
    for text in found:
        for number, (name, data) in enumerate(sorted(files.items())):
            odd = replaced(data, text, text[:3] + ODD + text[3:]) if everywhere or number == 0 else data
            (folder / name).write_bytes(dump(odd))
        analysis = load(folder)
        write_everything(analysis, output)
        faults += bool(analysis.incidents)
    assert faults > len(found) / 2  # the fault is still found where the text has no meaning for it


def test_names_of_files_and_folders_need_not_be_unicode(tmp_path: Path) -> None:
    folder = tmp_path / f"run{ODD}"
    for path in sorted(one_missing(folder).iterdir())[:1]:
        path.rename(folder / f"trace_{ODD}_0")
    analysis = load(folder)
    assert analysis.incidents
    write_everything(analysis, tmp_path)
