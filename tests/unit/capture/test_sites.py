"""Call sites keep their numbers, and no two sites have one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from otel_fr.capture import sites as module
from otel_fr.capture.sites import SiteKey, Sites

_SOURCE = """
def {name}():
    return find()
def middle(call):
    return call()
"""


def _program(sites: Sites, name: str = "inner") -> Callable[[], SiteKey]:
    """A function of new code objects that returns the number of its call site."""
    names: dict[str, Any] = {"find": lambda: sites.find(1)[0]}
    exec(compile(_SOURCE.format(name=name), "/home/user/train.py", "exec"), names)
    return lambda: names["middle"](names[name])


def _twice(call: Callable[[], SiteKey]) -> tuple[SiteKey, SiteKey]:
    first, second = (call() for _ in range(2))
    return first, second


def test_a_site_has_one_number() -> None:
    sites = Sites(())
    first, second = _twice(_program(sites))
    assert first == second != 0


def test_equal_positions_in_other_code_are_another_site() -> None:
    sites = Sites(())
    one, other = _program(sites, "one"), _program(sites, "other")
    numbers = [call() for _ in range(3) for call in (one, other)]
    assert numbers == numbers[:2] * 3
    assert numbers[0] != numbers[1]


def test_callers_tell_sites_apart() -> None:
    sites = Sites(())
    call = _program(sites)
    here, there = [call() for _ in range(2)], call()
    assert len({*here, there}) == 2


def test_code_that_is_gone_is_not_taken_for_another() -> None:
    sites = Sites(())
    numbers = {_program(sites)() for _ in range(300)}  # the ids of their code objects would be used again
    assert len(numbers) == 300


def test_forgotten_sites_get_new_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_NUMBERS", 3)
    sites = Sites(())
    numbers = [_program(sites)() for _ in range(20)]
    assert len(set(numbers)) == 20


def test_the_site_is_described_by_its_frames() -> None:
    sites = Sites(())
    names: dict[str, Any] = {"find": lambda: sites.describe(sites.find(1)[1])}
    exec(compile(_SOURCE.format(name="inner"), "/home/user/train.py", "exec"), names)
    found = names["middle"](names["inner"])
    assert found.frames[:2] == (
        ("/home/user/train.py", 3, "inner"),
        ("/home/user/train.py", 5, "middle"),
    )
