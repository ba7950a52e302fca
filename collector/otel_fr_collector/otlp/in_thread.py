"""Decoding outside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from otel_fr_collector.otlp.signals import MalformedError
from otel_fr_collector.otlp.wire import TooManyError

_T = TypeVar("_T")


class _Refused(NamedTuple):
    kind: type[ValueError]
    text: str


async def decode_in_thread(decode: Callable[[], _T]) -> _T:
    """Run ``decode`` in a thread and return its result.

    An error is raised again outside the thread. The original error is part of a reference cycle through its traceback.
    This would keep the request and everything decoded from it until the next garbage collection.

    Raises:
        MalformedError, TooManyError, ValueError: ``decode`` has raised it.
    """
    found = await asyncio.to_thread(_run, decode)
    if isinstance(found, _Refused):
        raise found.kind(found.text)
    return found


def _run(decode: Callable[[], _T]) -> _T | _Refused:
    try:
        return decode()
    except (MalformedError, TooManyError) as error:
        return _Refused(type(error), str(error))
    except ValueError as error:
        return _Refused(ValueError, str(error))
