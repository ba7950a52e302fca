"""Groups of ``ProcessGroup.split_group``, a method in C++: torch's Python code does not register them.

``torch.distributed.split_group`` calls it, too, and registers what it returns.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_FURTHER: Final = ("timeout", "opts", "group_name", "group_desc", "device_types")
"""Its arguments after the ranks."""

_known: dict[str, tuple[weakref.ref[Any], tuple[int, ...]]] = {}
"""c10d's name of a group -> the group, and the ranks in its parent, in group order. Keeps no group alive."""


def observed(
    begin: Callable[[Any, Mapping[str, Any]], Any],
    made: Callable[[Any, Sequence[int], Any], None],
    end: Callable[[Any, BaseException | None], None],
    original: Callable[..., Any],
) -> Callable[..., Any]:
    """What takes the place of ``ProcessGroup.split_group``. What it calls must not raise.

    Args:
        begin: gets the parent, and the arguments by name, ``ranks`` being those in the parent; returns a token.
        made: gets the parent, the ranks, and the group; for members only.
        end: gets the token, and what the call raises.
    """

    def split_group(parent: Any, ranks: Any, *args: Any, **kwargs: Any) -> Any:
        token = begin(parent, {**dict(zip(_FURTHER, args, strict=False)), **kwargs, "ranks": ranks})
        try:
            group = original(parent, ranks, *args, **kwargs)
        except BaseException as error:
            end(token, error)
            raise
        if group is not None:
            made(parent, ranks, group)
        end(token, None)
        return group

    split_group.__doc__ = original.__doc__
    return split_group


def note(group: Any, ranks: Sequence[int]) -> list[str]:
    """Remember a group that was split off. Returns the names of earlier ones that no longer exist, and forgets them."""
    gone = [name for name, (known, _) in _known.items() if known() is None]
    for name in gone:
        del _known[name]
    _known[str(group.group_name)] = (weakref.ref(group), tuple(int(rank) for rank in ranks))
    return gone


def find(name: str) -> Any:
    """The live group of that name that was split off; None: there is none."""
    known = _known.get(name)
    return None if known is None else known[0]()


def ranks_of(group: Any) -> tuple[int, ...] | None:
    """Global ranks of a group that was split off, in group order; None: it is none."""
    return next((ranks for known, ranks in list(_known.values()) if known() is group), None)
