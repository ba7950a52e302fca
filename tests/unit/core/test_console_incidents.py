"""``otel-fr incidents``: the changes that ``--follow`` prints, and incidents that one answer does not list."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from otel_fr.console import incidents
from otel_fr.console.client import ChangeEvent, Client
from tests.support.incident_data import incident_data


class Collector:
    """A client of a collector that is restarted after each of these connections: the incidents, then the changes."""

    def __init__(self, *connections: tuple[list[Any], list[Any]]) -> None:
        self._left = list(connections)
        self._listed: list[Any] = []

    def changes(self) -> Iterator[ChangeEvent | None]:
        if not self._left:
            raise KeyboardInterrupt
        self._listed, changes = self._left.pop(0)
        yield None
        yield from (cast("ChangeEvent", {"change": change, "incident": one}) for change, one in changes)

    def incidents(self) -> list[Any]:
        return self._listed


def incident(revision: int, second: int, state: str = "firing") -> Any:
    return incident_data(revision=revision, updated_at=f"2026-01-02T03:04:{second:02}.000Z", state=state)


def followed(collector: Collector) -> list[str]:
    found = []
    with contextlib.suppress(KeyboardInterrupt):
        for change, _ in incidents._changes(cast("Client", collector), Namespace(job=None, state=None)):
            found.append(change)
    return found


def test_a_collector_that_has_forgotten_an_incident_counts_its_changes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "PAUSE", 0.0)
    none: list[Any] = []
    before = none, [("opened", incident(1, 1)), ("updated", incident(2, 2)), ("updated", incident(3, 3))]
    after = [incident(1, 40)], [("resolved", incident(2, 50, "resolved"))]
    assert followed(Collector(before, after)) == ["opened", "updated", "updated", "updated", "resolved"]


def test_a_change_that_the_list_already_had_is_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "PAUSE", 0.0)
    listed, late = [incident(2, 2)], [("opened", incident(1, 1)), ("updated", incident(2, 2))]
    again = [incident(3, 3, "resolved")], [("resolved", incident(3, 3, "resolved"))]
    assert followed(Collector((listed, late), again)) == ["opened", "resolved"]


class Pages:
    """A client of a collector that lists three incidents in one answer, of ten."""

    def __init__(self) -> None:
        titles = ["train.py (3f2a)", *["other"] * 9]
        self.known: list[Any] = [
            {**incident_data(job_title=title), "id": f"{number}" * 16, "consequence_count": 0}
            | {"detected_at": f"2026-01-02T03:04:0{number}.000Z"}
            for number, title in enumerate(titles)
        ]

    def incidents(self, *, job: str | None = None, before: str | None = None, **_: object) -> list[Any]:
        return [one for one in self.known if job is None and (before is None or one["detected_at"] < before)][-3:]

    def jobs(self) -> list[Any]:
        return []

    def incident(self, number: str) -> Any:
        return next(one for one in self.known if one["id"] == number)


def test_a_job_is_found_by_its_title_among_all_incidents(capsys: pytest.CaptureFixture[str]) -> None:
    asked = Namespace(job="train.py", state=None, json=False)
    assert incidents._list(cast("Client", Pages()), asked) == 0
    assert "train.py (3f2a)" in capsys.readouterr().out
    asked.job = "other"
    incidents._list(cast("Client", Pages()), asked)
    ids = [line.split()[7] for line in capsys.readouterr().out.splitlines()[1:]]
    assert ids == [f"{number}" * 16 for number in range(1, 10)]


def test_an_assistant_finds_the_incidents_of_a_finished_job_by_its_title(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    from otel_fr.mcp_server.server import Tools

    found = Tools(cast("Client", Pages()), tmp_path)._incidents(None, "train.py (3f2a)", 20)
    assert "job train.py (3f2a)/1" in found


def test_the_beginning_of_an_id_is_found_among_all_incidents() -> None:
    assert incidents.find(cast("Client", Pages()), "0000")["id"] == "0" * 16
    with pytest.raises(LookupError, match="no incident has an id that begins with 'a'"):
        incidents.find(cast("Client", Pages()), "a")
