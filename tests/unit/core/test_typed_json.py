"""JSON from outside is checked against a TypedDict once."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import pytest

from otel_fr.typed_json import typed


class Inner(TypedDict):
    name: str


class Place(TypedDict):
    host: str
    pod: str | None


class Places(TypedDict):
    by_rank: dict[str, Place]
    culprits: list[Place]


class Outer(TypedDict):
    number: int
    maybe: str | None
    ranks: list[int]
    sites: dict[str, str]
    inner: Inner | None
    state: Literal["firing", "resolved"]
    inners: list[Inner]


GOOD: dict[str, Any] = {
    "number": 1, "maybe": None, "ranks": [1, 2], "sites": {"1": "a.py:1 f"}, "inner": {"name": "x"}, "state": "firing",
    "inners": [{"name": "y"}],
}  # fmt: skip


def test_what_fits_is_returned_with_further_keys() -> None:
    assert typed(Outer, {**GOOD, "more": 1}) == {**GOOD, "more": 1}


def test_a_newer_version_may_have_further_values() -> None:
    newer = {**GOOD, "state": "paused"}
    assert typed(Outer, newer) == newer


def test_a_key_that_may_be_none_may_be_absent() -> None:
    """Records of the version before lack the keys that came later."""
    without = {key: value for key, value in GOOD.items() if key not in ("maybe", "inner")}
    assert typed(Outer, without) == {**GOOD, "inner": None}
    places = typed(Places, {"by_rank": {"1": {"host": "a"}}, "culprits": [{"host": "b", "new": 1}]})
    assert places["by_rank"]["1"]["pod"] is None
    assert places["culprits"] == [{"host": "b", "new": 1, "pod": None}]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("number", "1"), ("number", True), ("number", None), ("maybe", 1), ("ranks", [1, "2"]), ("ranks", "1"),
        ("sites", {"1": 2}), ("sites", []), ("inner", {}), ("inner", {"name": 1}), ("state", 1),
        ("inners", [{"name": "y"}, 1]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"'{key}'"):
        typed(Outer, {**GOOD, key: value})


@pytest.mark.parametrize("value", [None, [], "text", 1])
def test_only_an_object_is_one(value: object) -> None:
    with pytest.raises(ValueError, match="is an object"):
        typed(Outer, value)


def test_a_key_that_must_be_there_is_missed() -> None:
    with pytest.raises(ValueError, match="'number'"):
        typed(Outer, {key: value for key, value in GOOD.items() if key != "number"})
