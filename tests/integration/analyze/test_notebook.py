"""docs/notebook.ipynb runs, and its statements about its files are true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE

DOCS = ROOT / "docs"


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for needed in ("pandas", "nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(needed)
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook: Any = nbformat.read(DOCS / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(DOCS)}}).execute()
    outputs = json.dumps([cell.outputs for cell in notebook.cells if cell.cell_type == "code"])
    assert "<strong>missing_rank: rank 2</strong>" in outputs
    counts = dict(map(str.split, output(notebook, "last[").splitlines()[1:-1]))
    assert int(counts["1"]) > 2 * int(counts.get("0", 0)), "the text says that rank 0 waits for rank 1"
    assert "all_reduce" in output(notebook, '== "scheduled"')


def output(notebook: Any, source: str) -> str:
    """Return the last text that the cell with this source shows."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    text: str = cell.outputs[-1]["data"]["text/plain"]
    return text


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = json.loads((DOCS / "notebook.ipynb").read_text())
    assert all(not cell.get("outputs") for cell in notebook["cells"])
