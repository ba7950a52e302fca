"""The arguments of a call as text for readers."""

from __future__ import annotations

from collections.abc import Sequence

from otel_fr.match import Signature

MAX_SHAPES = 4
"""Tensors of a call whose shapes are shown."""
_MAX_DTYPES = 8


def arguments(signature: Signature) -> dict[str, str | int]:
    """The recorded arguments, name -> value: ``{"input": "[4, 4] Float", "reduce op": "sum"}``."""
    known = {
        "input": _tensors(signature.input_sizes, signature.input_dtypes),
        "output": _tensors(signature.output_sizes, signature.output_dtypes),
        "reduce op": signature.reduce_op,
        "root": signature.root,
        "peer": signature.peer,
        "tag": signature.tag,
    }
    return {name: value for name, value in known.items() if value is not None and value != ""}


def _tensors(sizes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> str:
    shapes = [str(list(shape)) for shape in sizes[:MAX_SHAPES]]
    more = f" and {len(sizes) - MAX_SHAPES} more" if len(sizes) > MAX_SHAPES else ""
    return " ".join(shapes) + more + (f" {', '.join(dict.fromkeys(dtypes[:_MAX_DTYPES]))}" if dtypes and shapes else "")
