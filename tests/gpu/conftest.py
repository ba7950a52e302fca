"""Each test runs on the simulated device, on the CPU, on one GPU and on several.

`make test` runs some of them on the simulated device. `make test-gpu` runs all, skips where there is no GPU, and writes
what was found to the file ``OTEL_FR_TEST_GPU_REPORT``.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.gpu import report
from tests.gpu.hardware import KINDS_OF_HARDWARE, SIMULATED, Hardware, driver, engine, facts, find
from tests.support.paths import ROOT

VARIABLE = "OTEL_FR_TEST_GPU_REPORT"


@pytest.fixture(
    params=[kind if kind == SIMULATED else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS_OF_HARDWARE]
)
def hardware(request: pytest.FixtureRequest) -> Hardware:
    found = find(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    return found


class Writer:
    """Collects the outcome of each test of this folder, and writes the report at the end of the session."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[report.Row] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.skipped or report.failed:
            self._rows.append(_row(report))

    def pytest_sessionfinish(self) -> None:
        machine = {**facts(), "driver": driver(), "engine": engine(), "commit": _commit()}
        text = report.text(self._rows, machine, time.strftime("%Y-%m-%d", time.gmtime()), "make test-gpu")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(text)
        print(f"\n{text}\nThis is in {self._path}, to be put into tests/gpu/README.md.")


def _row(outcome: pytest.TestReport) -> report.Row:
    name = outcome.nodeid.rpartition("::")[2]
    if outcome.skipped and isinstance(outcome.longrepr, tuple):
        why = str(outcome.longrepr[2]).removeprefix("Skipped: ")
    else:
        why = outcome.longreprtext.strip().rpartition("\n")[2] if outcome.failed else ""
    found = {name: str(value) for name, value in outcome.user_properties}
    return report.Row(name, outcome.outcome, outcome.duration, why, found)


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get(VARIABLE):
        config.pluginmanager.register(Writer(Path(path)), "gpu-report")
