"""The screen of ``otel-fr top``: which lines are in its window."""

from __future__ import annotations

import io
from typing import Any, cast

from rich.console import Console
from rich.live import Live

from otel_fr.console.client import Client
from otel_fr.console.top import Place, Shown, _Top
from tests.support.incident_data import incident_data
from tests.unit.core.test_mcp_texts import job


def test_the_chosen_incident_of_a_job_is_on_the_screen() -> None:
    console = Console(file=io.StringIO(), width=100, height=12)
    found: list[Any] = [{**incident_data(), "id": f"{number:016x}", "consequence_count": 0} for number in range(30)]
    top = _Top(
        cast("Client", None), Shown(Place("ab"), [], [], job=job(), of_job=found), console, cast("Live", None), 1
    )
    top._go(Place("ab"))

    def screen() -> list[str]:
        lines = console.render_lines(top._screen(), console.options, pad=False)
        return ["".join(segment.text for segment in line) for line in lines]

    for key, number in (
        *[("down", at) for at in range(1, 30)],
        ("down", 29),
        *[("up", at) for at in range(28, -1, -1)],
    ):
        top._press(key)
        shown = screen()
        (at,) = [at for at, line in enumerate(shown) if line.startswith("> ")]
        assert f"[{number:016x}]" in shown[at]
        assert "rank 1 did not join" in shown[at + 1]
    top._press("page down")
    assert not any(line.startswith("> ") for line in screen())
