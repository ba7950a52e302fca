"""A page of a real browser, watched while a test uses it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.waiting import PATIENCE

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def playwright() -> Any:
    """Return Playwright's module. If it is missing, skips the test, or the calling module with all its tests."""
    return pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


def expectation() -> Any:
    """Return Playwright's `expect`, with the tests' patience."""
    expect = playwright().expect
    expect.set_options(timeout=1000 * PATIENCE)
    return expect


@contextmanager
def chromium() -> Iterator[Any]:
    """Run a browser. Skips the test if there is none."""
    if CHROMIUM is None:
        pytest.skip("chromium is not here (Debian: apt-get install chromium)")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright().sync_playwright() as program:
        started = program.chromium.launch(executable_path=CHROMIUM, args=options)
        yield started
        started.close()


def new_page(browser: Any) -> Any:
    """Return a page that waits with the tests' patience."""
    page = browser.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    return page


class Watched:
    """A browser page that notes problems: errors, warnings, dialogs, requests to other hosts.

    Tests use it one after the other, because a new page takes most of a test's time. A test does not see what the site
    of another test has stored, because each test's site has another port.
    """

    def __init__(self, browser: Any) -> None:
        self.page = new_page(browser)
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    @contextmanager
    def used(self) -> Iterator[Watched]:
        """Use the page for one test. Fails at the end if the page has noted a problem."""
        self.page.set_viewport_size({"width": 1400, "height": 900})
        self.page.emulate_media(color_scheme="light")
        yield self
        self.page.unroute_all()
        self.page.goto("about:blank")
        problems, self.problems = self.problems, []
        hosts, self.hosts = self.hosts, set()
        assert not problems, problems
        assert len(hosts) == 1

    def texts(self, function: str, calls: list[list[Any]]) -> list[Any]:
        """Return the results of a function of page/text.js for these arguments. The page must be at a collector."""
        found: list[Any] = self.page.evaluate(
            """async ([name, calls]) => {
              const text = await import(new URL("page/text.js", location.href));
              return calls.map((given) => text[name](...given));
            }""",
            [function, calls],
        )
        return found

    def _dialog(self, dialog: Any) -> None:
        self.problems.append(dialog.message)
        dialog.dismiss()
