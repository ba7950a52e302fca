"""Modules are patched once they have been imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from otel_fr.capture import hook, split_groups
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


class Group:
    """In place of torch's ``ProcessGroup``."""

    def __init__(self, name: str) -> None:
        self.group_name = name


@pytest.mark.parametrize("name", [None, "1"])
def test_a_name_may_belong_to_another_group_once_its_group_is_destroyed(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str | None] = []
    session: Any = type("Session", (), {"group_gone": staticmethod(found.append)})
    monkeypatch.setattr(hook._state, "session", session)
    monkeypatch.setattr(split_groups, "_known", {})
    split, again = Group("1"), Group("2")
    hook._note_unregistered(split, [0])
    hook._on_gone(name)  # torch calls the next group "1", too
    assert split_groups.find("1") is None
    del split
    hook._note_unregistered(again, [0])
    assert found == [name]
    del again
    again = Group("2")
    hook._note_unregistered(again, [0])
    assert found == [name, "2"]
    assert split_groups.find("2") is again
