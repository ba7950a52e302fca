"""What holds for all tests: they read no settings of the caller's, and Ctrl-C reaches what they start."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support import required, warm
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.support.simulated_device import SimulatedDevice

# How long an example takes says more about what else the machine does than about the code. One commit has one result:
# `pytest --hypothesis-profile random` looks for new counterexamples, among many more.
relaxed = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=40
)
settings.register_profile("reproducible", relaxed, derandomize=True)
settings.register_profile("random", relaxed, max_examples=250)
settings.load_profile("reproducible")

# Images of containers often set it. Each of the hundreds of programs that tests start would compile its sources again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell ignores SIGINT in what it runs in the background, and that is inherited: Ctrl-C is to reach what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Ranks that tests start leave nothing in the caller's cache, and find the kernel that is compiled for the tests.
os.environ["XDG_CACHE_HOME"] = str(ROOT / "build" / "test-cache")

# Before any fixture: also what a whole module shares starts without the caller's settings.
for _name in list(os.environ):
    if _name.startswith(("OTEL_", "TORCH_", "TORCHCOMM")) and not _name.startswith("OTEL_FR_TEST_"):
        del os.environ[_name]
# All tests can be run over the other engine; tests that run over each choose it themselves.
os.environ["OTEL_FR_CAPTURE_ENGINE"] = os.environ.get("OTEL_FR_TEST_ENGINE", "python")


def pytest_configure() -> None:
    """Before pytest starts its workers, which inherit it."""
    warm.share()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected lives to the end: no collector of garbage goes through it, then or in a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and (why := required.failure(report.longrepr)):
        report.outcome, report.longrepr = "failed", why
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and (why := required.failure(report.longrepr)):
        report.outcome, report.longrepr = "failed", why
    return report


@pytest.fixture(scope="session")
def simulated_device() -> SimulatedDevice:
    """For jobs on NCCL. The test skips where it is not set up."""
    from tests.support import simulated_device

    return simulated_device.find()
