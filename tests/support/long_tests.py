"""Tests that only `make test-all` runs: further cases of tests that always run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

Case = TypeVar("Case", str, int)


def all_but(short: Iterable[Case], cases: Iterable[Case]) -> list[ParameterSet]:
    """Return the cases as a test's parameters, with all but the ``short`` ones marked as long.

    Raises:
        ValueError: a short case is not among the cases.
    """
    kept, every = set(short), list(cases)
    if unknown := kept.difference(every):
        raise ValueError(f"no cases: {unknown}")
    return [pytest.param(case, marks=() if case in kept else pytest.mark.long, id=str(case)) for case in every]
