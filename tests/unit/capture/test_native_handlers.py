"""What the compiled engine keeps of the program: code objects, for as long as it may know their addresses."""

from __future__ import annotations

import gc
import weakref
from types import CodeType, SimpleNamespace
from typing import Any, cast

from tests.support.engines import needs_ring_writer

pytestmark = needs_ring_writer


def code(name: str) -> CodeType:
    return compile("1", name, "eval")


def test_a_code_object_is_kept_until_they_are_forgotten_twice() -> None:
    """A thread asks of one, others make the engine forget all, and only then the engine is told what the first is."""
    from otel_fr.capture.native.recorder import Handlers

    sites = SimpleNamespace(is_library=lambda file: file.startswith("lib"))
    handlers = Handlers(cast(Any, SimpleNamespace(sites=sites)), {}, cast(Any, None))
    asked, last = code("lib.py"), code("user.py")
    kept = weakref.ref(asked)
    assert (handlers.is_library(asked), handlers.is_library(last)) == (1, 0)
    del asked
    handlers.forget_codes(last)
    gc.collect()
    assert kept() is not None
    handlers.forget_codes(code("other.py"))
    gc.collect()
    assert kept() is None
