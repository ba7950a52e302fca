"""The verdict about a rank whose section is overdue, as text: it has values, but no field in which ranks differ."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from otel_fr.analyze.analysis import load
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.text import to_text
from otel_fr.match import Category
from tests.support.evidence import NO_CALL, finding
from tests.support.torch_files import one_missing


def test_what_is_overdue_is_named_without_a_field(tmp_path: Path) -> None:
    values = {1: "section load, limit 2.0 s"}
    found = finding(Category.SECTION_OVERRUN, **NO_CALL, waiting_ranks=(), values=values)
    analysis = dataclasses.replace(load(one_missing(tmp_path, 2, 1)), findings=[found])
    lines = to_text(analysis, View()).splitlines()
    assert "  rank 1: section load, limit 2.0 s" in lines
