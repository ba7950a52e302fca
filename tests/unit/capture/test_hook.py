"""Modules are patched once they have been imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from otel_fr.capture.hook import _Finder

NAME = "watched_by_test_hook"


@pytest.fixture
def patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    """The modules that were patched, while imports of `NAME` are watched."""
    (tmp_path / f"{NAME}.py").write_text("import sys\nif sys.fails.pop(): raise ImportError('not yet')\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = [*sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", [*finders])
    found: list[ModuleType] = []
    _Finder(NAME, found.append).watch()
    yield found
    sys.modules.pop(NAME, None)
    assert sys.meta_path == finders


def test_a_module_whose_first_import_fails_is_patched_by_the_next(
    patched: list[ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "fails", [False, True], raising=False)
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(NAME)
    assert patched == []
    assert [importlib.import_module(NAME)] == patched


def test_a_program_may_look_for_a_module_before_it_imports_it(
    patched: list[ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "fails", [False], raising=False)
    assert importlib.util.find_spec(NAME) is not None
    assert [importlib.import_module(NAME)] == patched
