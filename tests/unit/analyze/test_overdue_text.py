"""The verdict about a rank whose section is overdue, as text: it has values, but no field in which ranks differ."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from otel_fr.analyze.analysis import load
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.text import to_text
from otel_fr.match import Category, Finding
from tests.support.torch_files import one_missing


def test_what_is_overdue_is_named_without_a_field(tmp_path: Path) -> None:
    finding = Finding(
        key="section load",
        category=Category.SECTION_OVERRUN,
        group=None,
        operation="",
        sequence_id=None,
        stream="collective",
        culprit_ranks=(1,),
        waiting_ranks=(),
        summary="rank 1 has been in section load for 12 s",
        values={1: "section load, limit 2.0 s"},
    )
    analysis = dataclasses.replace(load(one_missing(tmp_path, 2, 1)), findings=[finding])
    lines = to_text(analysis, View()).splitlines()
    assert "  rank 1: section load, limit 2.0 s" in lines
