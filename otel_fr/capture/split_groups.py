"""Groups of ``ProcessGroup.split_group``, a C++ method. torch's Python code does not register them.

``torch.distributed.split_group`` calls this method, too, but registers the group that it returns.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_FURTHER: Final = ("timeout", "opts", "group_name", "group_desc", "device_types")
"""Arguments of ``ProcessGroup.split_group`` after the ranks."""

_known: dict[str, tuple[weakref.ref[Any], tuple[int, ...]]] = {}
"""By c10d's name: the group, and its members as torch numbers ranks globally, in group order. Keeps no group alive."""


def observed(
    begin: Callable[[Any, Mapping[str, Any]], Any],
    made: Callable[[Any, Sequence[int], Any], None],
    end: Callable[[Any, BaseException | None], None],
    original: Callable[..., Any],
) -> Callable[..., Any]:
    """Return the replacement of ``ProcessGroup.split_group``. The functions that it calls must not raise.

    Args:
        begin: called with the parent and the arguments by name. ``ranks`` are ranks in the parent. Returns a token.
        made: called with the parent, the ranks and the new group, only in members of the new group.
        end: called with the token, and the error that the call raises, or None.
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


def note(group: Any, ranks: Sequence[int]) -> None:
    """Remember a group that torch does not register. ``ranks``: its members as torch numbers ranks globally."""
    _known[str(group.group_name)] = (weakref.ref(group), tuple(int(rank) for rank in ranks))


def gone() -> list[str]:
    """Return the names of groups that were passed to `note` and no longer exist."""
    return [name for name, (known, _) in _known.items() if known() is None]


def forget(name: str | None) -> None:
    """Forget the group of that name, or all groups (None): torch may give the name to another group now."""
    for known in list(_known) if name is None else [name]:
        _known.pop(known, None)


def find(name: str) -> Any:
    """Return the live group of that name that was passed to `note`, or None."""
    known = _known.get(name)
    return None if known is None else known[0]()


def ranks_of(group: Any) -> tuple[int, ...] | None:
    """Return torch's global ranks of a group that was passed to `note`, in group order. None for other groups."""
    return next((ranks for known, ranks in list(_known.values()) if known() is group), None)
