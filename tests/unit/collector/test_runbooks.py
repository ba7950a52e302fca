"""Runbooks as pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from otel_fr_collector.incidents.what_to_do import CASES, ONCE_OVER, WHAT_TO_DO
from otel_fr_collector.web import runbooks
from otel_fr_collector.web.app import OPEN_PATHS

from otel_fr.match import Category


@pytest.mark.parametrize("name", [*(category.value for category in Category), "collector"])
def test_each_category_has_a_page_with_sections_that_alerts_can_link_to(name: str) -> None:
    page = runbooks.as_html(name)
    assert "<h1 " in page
    assert '<h2 id="how-to-silence">How to silence</h2>' in page
    assert OPEN_PATHS.fullmatch(f"/runbooks/{name}")


@pytest.mark.parametrize("category", Category)
def test_alerts_say_what_to_do_first_as_the_runbook_does(category: Category) -> None:
    text = (Path(runbooks.__file__).with_name(f"{category.value}.md")).read_text()
    assert f"## What to do\n\n{WHAT_TO_DO[category]}\n" in text
    own = [case for case in CASES if category in case.categories and len(case.categories) < len(Category)]
    texts = [ONCE_OVER.get(category, ""), *(text for case in own for text in (case.text, case.once_over))]
    assert [one for one in texts if f" {one}\n" not in text and one] == []


def test_what_is_no_runbook_is_not_read() -> None:
    for name in ("../app", "nothing", ""):
        with pytest.raises(KeyError):
            runbooks.as_html(name)
