"""Kinds of JSON values, keys of such values, and readers of JSON objects with such keys.

A section is a NamedTuple with one field for each key of an object: ``field: Annotated[type, Key(...)]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast, get_type_hints

MAX_TENSORS: Final = 256
"""Tensors (dtypes, splits) of a call that are compared. Spans name no more: both are cut to the same length."""
MAX_DIMENSIONS: Final = 64
"""Of one tensor: the most that PyTorch reduces over (ATen/WrapDimUtilsMulti.h, dim_bitset_size)."""
MAX_SIZES: Final = 4_096
"""Dimensions of all tensors of a list together: the tensors after them are left out, on every rank alike. 256 tensors
of 16 dimensions have as many."""
MAX_DTYPE: Final = 64
"""Characters kept of a dtype's name; PyTorch's longest has 17."""
MAX_NAME: Final = 1_024
"""Characters kept of a name: a group's, a call site's, an error's."""

_INTEGERS: Final = {int}
_INTEGER_LIMIT: Final = 2**63
"""Integers beyond 64 bits count as absent: no store or array takes them."""
_NUMBER_LIMIT: Final = 1e15
"""Times from here on (30 million years in seconds) count as absent, and so do infinity and NaN."""

Json = Mapping[str, object]
Sizes = tuple[tuple[int, ...], ...]
_T = TypeVar("_T")


class Exact(NamedTuple):
    """Values that a form takes unchanged, for a reader that checks types and bounds as it decodes; not always all.

    Attributes:
        kind: ``int``, ``float``, ``bool``, ``str`` or a section; of the items, where the value is a list.
        least, most: bounds of a number, or of the length of a text, both included.
        lists: the most items of the list, and of each list in it; (): the value is no list.
        is_optional: null, too.
    """

    kind: type
    least: float | None = None
    most: float | None = None
    lists: tuple[int, ...] = ()
    is_optional: bool = False


class Form(NamedTuple):
    """A kind of value.

    Attributes:
        read: the value from parsed JSON, cut to its bounds; ``default`` for one of another type.
        default: where the key is absent or null.
        description: the kind in words.
        exact: values that `read` would return unchanged, with lists as tuples.
        as_is: Python condition on such a value ``v``, so that `read` need not be called.
    """

    read: Callable[[Any], object]
    default: object
    description: str
    exact: Exact
    as_is: str = ""


class Key(NamedTuple):
    """One key.

    Attributes:
        optional: left out of what is built where the field has its default.
        required: its form reads an absent key too, and raises ValueError.
    """

    name: str
    form: Form
    meaning: str
    optional: bool = False
    required: bool = False


def text(limit: int) -> Form:
    """Text of at most ``limit`` characters; a longer one is cut."""

    def read(value: object) -> str:
        return value[:limit] if isinstance(value, str) else ""

    return Form(read, "", "text", Exact(str, most=limit), f"type(v) is str and len(v) <= {limit}")


def optional_text(limit: int) -> Form:
    """As `text`; None where it is absent or empty."""

    def read(value: object) -> str | None:
        return (value[:limit] or None) if isinstance(value, str) else None

    exact = Exact(str, 1, limit, is_optional=True)
    return Form(read, None, "text or null", exact, f"type(v) is str and 0 < len(v) <= {limit}")


def integer(default: int | None, description: str = "integer") -> Form:
    """An integer of 64 bits."""

    def read(value: object) -> int | None:
        return value if type(value) is int and abs(value) < _INTEGER_LIMIT else default

    exact = _INTEGER._replace(is_optional=default is None)
    return Form(read, default, description, exact, f"type(v) is int and -{_INTEGER_LIMIT} < v < {_INTEGER_LIMIT}")


def flag(default: bool | None) -> Form:
    """True or false."""

    def read(value: object) -> bool | None:
        return value if isinstance(value, bool) else default

    return Form(read, default, "boolean", Exact(bool, is_optional=default is None), "type(v) is bool")


def _read_count(value: object) -> int:
    return max(0, value) if type(value) is int and value < _INTEGER_LIMIT else 0


def read_number(value: object) -> float | None:
    """A number from JSON; None for anything else, infinity and NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _NUMBER_LIMIT else None


def read_sizes(value: object) -> Sizes:
    """Sizes from JSON (``[[3, 4]]``, a list of shapes). Anything else is ``()``, which disagrees with nothing."""
    if not isinstance(value, list):
        return ()
    shapes: list[tuple[int, ...]] = []
    left = MAX_SIZES
    for shape in value[:MAX_TENSORS]:
        if not isinstance(shape, list):
            return ()
        sizes = tuple(shape[:MAX_DIMENSIONS])
        if not _are_integers(sizes):
            return ()
        left -= len(sizes)
        if left < 0:
            break
        shapes.append(sizes)
    return tuple(shapes)


def _are_integers(values: tuple[Any, ...]) -> bool:
    """Whether all are integers of 64 bits."""
    if not values:
        return True
    return set(map(type, values)) == _INTEGERS and min(values) > -_INTEGER_LIMIT and max(values) < _INTEGER_LIMIT


def read_names(value: object) -> tuple[str, ...]:
    """dtype names from JSON; anything but a list of texts is ``()``."""
    if not isinstance(value, list):
        return ()
    names = value[:MAX_TENSORS]
    for name in names:
        if not isinstance(name, str):
            return ()
    return tuple([name[:MAX_DTYPE] for name in names])


def read_splits(value: object) -> tuple[int, ...] | None:
    """Split sizes from JSON; None: even."""
    if not isinstance(value, list):
        return None
    splits = tuple(value[:MAX_TENSORS])
    return splits if _are_integers(splits) else None


_INTEGER = Exact(int, 1 - _INTEGER_LIMIT, _INTEGER_LIMIT - 1)
_NUMBER = Exact(float, 1 - _NUMBER_LIMIT, _NUMBER_LIMIT - 1, is_optional=True)
NAME = text(MAX_NAME)
INTEGER = integer(0)
OPTIONAL_INTEGER = integer(None, "integer or null")
COUNT = Form(_read_count, 0, "integer", Exact(int, 0, _INTEGER_LIMIT - 1))
_IS_NUMBER = f"type(v) is float and -{_NUMBER_LIMIT} < v < {_NUMBER_LIMIT}"
SECONDS = Form(read_number, None, "seconds", _NUMBER, _IS_NUMBER)
MILLISECONDS = Form(read_number, None, "milliseconds", _NUMBER, _IS_NUMBER)
SIZES = Form(
    read_sizes,
    (),
    "list of lists of integers",
    _INTEGER._replace(lists=(MAX_SIZES // MAX_DIMENSIONS, MAX_DIMENSIONS)),
)
NAMES = Form(read_names, (), "list of texts", Exact(str, most=MAX_DTYPE, lists=(MAX_TENSORS,)))
SPLITS = Form(read_splits, None, "list of integers or null", _INTEGER._replace(lists=(MAX_TENSORS,), is_optional=True))


def keys_of(section: type) -> tuple[tuple[Key, object], ...]:
    """The key of each field of a section, and the field's default (its form's if it has none)."""
    hints = get_type_hints(section, include_extras=True)
    defaults: dict[str, object] = getattr(section, "_field_defaults", {})
    keys: dict[str, Key] = {name: hint.__metadata__[0] for name, hint in hints.items()}
    return tuple((key, defaults.get(name, key.form.default)) for name, key in keys.items())


def reader_of(section: type[_T]) -> Callable[[Json], _T]:
    """A function that makes a section from a JSON object.

    Its source is generated from the keys, as `dataclasses` does for ``__init__``: every rank of a job sends a report a
    second, and a generic loop over the keys takes twice as long.
    """
    scope: dict[str, Any] = {"new": tuple.__new__, "section": section}
    items: list[str] = []
    for number, (key, _) in enumerate(keys_of(section)):
        read, default = f"read_{number}", f"default_{number}"
        scope[read], scope[default] = key.form.read, key.form.default
        value = f"v if {key.form.as_is} else {read}(v)" if key.form.as_is else f"{read}(v)"
        absent = f"{read}(v)" if key.required else default
        items.append(f"{absent} if (v := get({key.name!r})) is None else {value}")
    source = f"def read(data):\n get = data.get\n return new(section, ({', '.join(items)},))"
    exec(source, scope)  # noqa: S102 - made of the constants of the schema only
    return cast("Callable[[Json], _T]", scope["read"])


def object_of(section: type[_T], description: str) -> Form:
    """An object with the keys of ``section``; None where it is absent."""
    read_section = reader_of(section)

    def read(value: object) -> _T | None:
        return read_section(value) if isinstance(value, dict) else None

    return Form(read, None, description, Exact(section, is_optional=True))
