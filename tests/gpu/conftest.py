"""Each test runs on the simulated device, on the CPU, on one GPU and on several.

`make test` runs some of them on the simulated device. `make test-gpu` runs all of them, skips those without their
GPUs, and writes the results as JUnit XML.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.gpu.hardware import KINDS_OF_HARDWARE, SIMULATED, Hardware, driver, facts, find

VARIABLE = "OTEL_FR_TEST_GPU"
"""Set by `make test-gpu`."""


@pytest.fixture(
    params=[kind if kind == SIMULATED else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS_OF_HARDWARE]
)
def hardware(request: pytest.FixtureRequest) -> Hardware:
    found = find(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session", autouse=True)
def machine(record_testsuite_property: Callable[[str, object], None]) -> None:
    """Record in the report on which machine the tests ran."""
    if VARIABLE in os.environ:
        for name, value in {**facts(), "driver": driver()}.items():
            record_testsuite_property(name, value)
