"""Sentences as users read them: see `tests.unit.match.wording`, which also writes the files."""

from __future__ import annotations

from pathlib import Path

from otel_fr.match import Category
from otel_fr.match.rules import STAGES, reference, rules
from otel_fr.presentation import MAX_SUMMARY
from tests.unit.match.wording import FOLDER, cases, wording

DOCUMENT = Path(__file__).parents[3] / "docs" / "concepts" / "verdicts.md"


def test_the_rules_are_those_of_the_document() -> None:
    assert reference() in DOCUMENT.read_text(), "put match.rules.reference() into docs/concepts/verdicts.md"
    assert len({stage.name for stage in STAGES}) == len(STAGES)
    known = {rule.name for rule in rules()}
    assert {finding.rule for _, findings in cases() for finding in findings} - known == {"last_again_and_again"}


def test_sentences_are_those_of_the_files() -> None:
    found = wording()
    assert {path.stem for path in FOLDER.iterdir()} == {category.value for category in Category}
    for category, text in found.items():
        assert text == (FOLDER / f"{category.value}.txt").read_text()


def test_summaries_are_single_lines_of_bounded_length_with_names_of_their_own() -> None:
    names = [name for name, _ in cases()]
    assert len(names) == len(set(names))
    for _, findings in cases():
        assert all("\n" not in one.text and len(one.summary) <= MAX_SUMMARY for one in findings)
