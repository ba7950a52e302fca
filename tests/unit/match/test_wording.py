"""Sentences as users read them: see `tests.unit.match.wording`, which also writes the files."""

from __future__ import annotations

from pathlib import Path

from otel_fr.match import Category
from otel_fr.match.rules import STAGES, reference, rule_names
from otel_fr.presentation import MAX_SUMMARY
from tests.unit.match.wording import FOLDER, cases, wording

DOCUMENT = Path(__file__).parents[3] / "docs" / "concepts" / "verdicts.md"

WITHOUT_FINDING = {
    "named_already",
    "may_still_join",
    "death_elsewhere",
    "device_named_already",
    "near_a_culprit",
    "begun_elsewhere",
    "refused",
    "held_by_batch",
}
"""Rules that only say why a root needs no finding of its own."""


def test_the_rules_are_those_of_the_document() -> None:
    assert reference() in DOCUMENT.read_text(), "put match.rules.reference() into docs/concepts/verdicts.md"
    assert len({stage.roots for stage in STAGES}) == len(STAGES)


def test_each_rule_that_makes_a_finding_has_an_example_in_the_files() -> None:
    shown = {finding.rule for _, findings in cases() for finding in findings}
    assert shown - set(rule_names()) == {"last_again_and_again"}
    assert set(rule_names()) - shown == WITHOUT_FINDING


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
