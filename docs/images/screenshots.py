"""`make screenshots`: the pictures of the page in this folder, of real jobs; only the 1,024 ranks are simulated.

They show the paths of the checkout that makes them. Needs Chromium and playwright (the ``dev`` extra).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from tests.support import torchrun
from tests.support.collector_process import Collector, running
from tests.support.staged_collector import Stage
from tests.support.waiting import PATIENCE

FOLDER = Path(__file__).parent
JOB = FOLDER / "job.py"
DESKTOP: ViewportSize = {"width": 1200, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
expect.set_options(timeout=PATIENCE * 1000)


def main() -> int:
    """Make all pictures; returns the exit status."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("screenshots: Chromium is not here (Debian: apt-get install chromium)", file=sys.stderr)
        return 2
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as program, tempfile.TemporaryDirectory() as folder:
        browser = program.chromium.launch(executable_path=chromium, args=options)
        page = browser.new_page(viewport=DESKTOP, timezone_id="UTC", color_scheme="light")
        page.set_default_timeout(PATIENCE * 1000)
        with running(Path(folder)) as collector:
            _real(page, collector, Path(folder))
        with Stage() as stage:
            run = stage.job(1_024, "llama-1024")
            stage.hang(run, 717)
            page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
            expect(page.locator("#nodes .sw-culprit")).to_be_visible()
            _save(page, "ranks-1024")
        browser.close()
    return 0


def _real(page: Page, collector: Collector, folder: Path) -> None:
    """A healthy job, a slow one, and one that hangs, until its time-out ends it."""
    with _job(collector, folder, "healthy"):
        _open_job(page, collector, "running")
        expect(page.locator("#charts canvas").first).to_be_visible()
        _save(page, "healthy")
    with _job(collector, folder, "slow"):
        _open_job(page, collector, "slow")
        page.locator("#communication summary").click()
        expect(page.locator("#slowest")).to_contain_text("Each step loses")
        expect(page.locator("#charts canvas").first).to_be_visible()
        _save(page, "slow")
    with _job(collector, folder, "hung") as job:
        page.goto(collector.http + "/")
        expect(page.locator("#jobs .item.incident .text").first).to_contain_text("did not join")
        page.locator("#jobs .item.incident").click()
        expect(page.locator("#nodes .sw-culprit")).to_be_visible()
        _save(page, "hung")
        page.set_viewport_size(PHONE)
        _save(page, "phone")
        page.set_viewport_size(DESKTOP)
        page.emulate_media(color_scheme="dark")
        _save(page, "dark")
        page.emulate_media(color_scheme="light")
        page.locator("#answer a[data-item]").click()
        expect(page.locator(".answer summary").first).to_be_visible()
        _save(page, "incident")
        page.go_back()
        job.wait(PATIENCE)
        expect(page.locator("#nodes .sw-dead").first).to_be_visible()
        _save(page, "after-time-out")


@contextlib.contextmanager
def _job(collector: Collector, folder: Path, how: str) -> Iterator[Any]:
    environment = {**torchrun.base_environment(), "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}"}
    environment |= {
        "OTEL_FR_DUMP_DIR": str(folder / how),
        "OTEL_FR_JOB_ID": f"llama-{how}",
        "OTEL_SERVICE_NAME": "llama",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=4", str(JOB), how]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as job:
        try:
            yield job
        finally:
            job.terminate()


def _open_job(page: Page, collector: Collector, state: str) -> None:
    page.goto(collector.http + "/")
    page.locator(f"#jobs .item.{state}").click()
    expect(page.locator("#grid tbody tr")).to_have_count(4)
    expect(page.locator("#grid thead")).to_contain_text("step")


def _save(page: Page, name: str) -> None:
    time.sleep(1.2)  # the page draws itself anew each second
    page.screenshot(path=FOLDER / f"{name}.png", full_page=True)
    print(f"{name}.png")


if __name__ == "__main__":
    sys.exit(main())
