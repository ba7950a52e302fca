"""Helpers for tests of the compiled capture engine. The tests skip if it cannot be built.

`make setup` puts the kernel into the tests' cache. Otherwise this module compiles it once, in about 20 s.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
from pathlib import Path

import pytest

from tests.support.long_tests import all_but
from tests.support.paths import ROOT

HAS_RING_WRITER = importlib.util.find_spec("otel_fr.capture.native._ringwriter") is not None

needs_ring_writer = pytest.mark.skipif(
    not HAS_RING_WRITER, reason="the ring writer is not compiled: no C++ compiler was found at installation"
)

CACHE = ROOT / "build" / "test-cache"
"""``XDG_CACHE_HOME`` for processes that need the kernel."""

ENGINES = ("python", "compiled")

EACH_ENGINE = all_but(("compiled",), ENGINES)
"""Parameters of tests that start processes. `test_engines` and `test_engines_agree` cover the Python engine."""


@functools.cache
def _kernel() -> Path:
    from otel_fr.capture.native import build, store

    folder = store.cache_folder({"XDG_CACHE_HOME": str(CACHE)})
    store.make_private(folder)
    with open(folder / ".tests", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build.build(build.Target.installed(), folder)


def kernel() -> Path:
    """Return the compiled kernel for the installed torch. Skips the test if it cannot be built."""
    from otel_fr.capture.native.build import BuildError

    if not HAS_RING_WRITER:
        pytest.skip("the ring writer is not compiled: no C++ compiler was found at installation")
    try:
        return _kernel()
    except BuildError as error:
        pytest.skip(f"no kernel: {error}")


def settings(engine: str) -> dict[str, str]:
    """Return the environment in which a process records with this engine. Skips the test if the engine cannot run."""
    if engine == "python":
        return {"OTEL_FR_CAPTURE_ENGINE": "python"}
    kernel()
    return {"OTEL_FR_CAPTURE_ENGINE": engine, "XDG_CACHE_HOME": str(CACHE)}
