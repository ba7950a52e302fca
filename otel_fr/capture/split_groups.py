"""Groups of ``ProcessGroup.split_group``, a method in C++: torch's Python code does not register them.

``torch.distributed.split_group`` calls it, too, and registers what it returns.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

_METHOD: Final = "split_group"

_known: dict[str, tuple[weakref.ref[Any], tuple[int, ...]]] = {}
"""c10d's name of a group -> the group, and the ranks in its parent, in group order. Keeps no group alive."""


def install(group_type: Any, on_split: Callable[[Any, Sequence[int], Any], None]) -> Callable[[], None]:
    """Notice each split.

    Args:
        group_type: torch's ``ProcessGroup``.
        on_split: ``on_split(parent, ranks in the parent, group)``, called for members. Must not raise.

    Returns:
        what restores the method, unless other code has replaced it meanwhile.
    """
    original = getattr(group_type, _METHOD, None)
    if original is None:  # an older torch
        return lambda: None

    def split_group(parent: Any, ranks: Any, *args: Any, **kwargs: Any) -> Any:
        group = original(parent, ranks, *args, **kwargs)
        if group is not None:
            on_split(parent, ranks, group)
        return group

    split_group.__doc__ = original.__doc__
    setattr(group_type, _METHOD, split_group)

    def restore() -> None:
        if getattr(group_type, _METHOD, None) is split_group:
            setattr(group_type, _METHOD, original)

    return restore


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
    known = _known.get(str(group.group_name))
    return known[1] if known is not None and known[0]() is group else None
