"""The page of ``otel-fr analyze`` in a real browser: headless Chromium, driven by playwright."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import load
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.page import to_html
from tests.support.paths import DUMPS
from tests.support.torch_files import hostile_folder, one_missing
from tests.support.watched_page import new_page

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def window(browser: Any) -> Any:
    """The browser page, which all tests use in turn: a new page takes as long as a test."""
    return new_page(browser)


@pytest.fixture
def open_page(tmp_path: Path, window: Any) -> Iterator[Open]:
    """Opens the page of a folder. Fails at the end if the page logged an error, or made a further request."""
    said: list[str] = []
    target = tmp_path / "page.html"
    noted: dict[str, Callable[[Any], None]] = {
        "console": lambda message: said.append(message.text),
        "pageerror": lambda error: said.append(str(error)),
        "request": lambda request: said.extend({request.url} - {target.as_uri()}),
    }
    for event, note in noted.items():
        window.on(event, note)

    def open_(folder: Path, *, width: int = 1280, height: int = 720, color_scheme: str = "light") -> Any:
        target.write_text(to_html(load(folder), View()), encoding="utf-8")
        window.set_viewport_size({"width": width, "height": height})
        window.emulate_media(color_scheme=color_scheme)
        window.goto(target.as_uri())
        return window

    yield open_
    window.mouse.move(0, 0)
    window.goto("about:blank")
    for event, note in noted.items():
        window.remove_listener(event, note)
    assert said == []


def pixels(page: Any, colour: str) -> int:
    """Return the number of the chart's pixels in the colour of a style sheet variable."""
    script = """name => {
        const probe = document.createElement("i");
        probe.style.color = `var(--${name})`;
        document.body.append(probe);
        const wanted = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
        probe.remove();
        const chart = document.getElementById("chart");
        const copy = document.createElement("canvas");
        copy.width = chart.width;
        copy.height = chart.height;
        const paper = copy.getContext("2d", {willReadFrequently: true});
        paper.drawImage(chart, 0, 0);
        const data = paper.getImageData(0, 0, copy.width, copy.height).data;
        let count = 0;
        for (let at = 0; at < data.length; at += 4) if (wanted.every((value, i) => data[at + i] === value)) count++;
        return count;
    }"""
    return int(page.evaluate(script, colour))


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_the_culprit_is_shown(tmp_path: Path, open_page: Open, scheme: str) -> None:
    page = open_page(one_missing(tmp_path / "files"), color_scheme=scheme)
    assert page.inner_text("h1").startswith("missing_rank: rank 2 ")
    assert "rank 2" in page.inner_text("dd.culprit")
    assert page.inner_text("tr.culprit th") == "rank 2"
    assert page.evaluate("document.documentElement.dataset.rows") == "4"
    assert pixels(page, "redbg") > 1000
    assert pixels(page, "amberbg") > 1000


def test_the_keys_lead_to_the_culprit_and_what_waits_for_it(tmp_path: Path, open_page: Open) -> None:
    page = open_page(one_missing(tmp_path / "files"))
    page.focus("#chart")
    page.keyboard.press("c")
    shown = page.inner_text("#details")
    assert shown.startswith("rank 2 (culprit): all_reduce number 3 of group default_pg (0), NOT MADE. The fault shows")
    page.keyboard.press("w")
    shown = page.inner_text("#details")
    assert shown.startswith("rank 0 (waiting): all_reduce number 3 of group default_pg (0), in flight")
    assert "/job/train.py:42 step" in shown
    page.keyboard.press("ArrowLeft")
    assert "all_reduce number 2 of group default_pg (0), completed, took 500 ms" in page.inner_text("#details")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#details").startswith("rank 1 (waiting): all_reduce number 2 of")


def test_waiting_calls_run_to_the_end_in_both_views(tmp_path: Path, open_page: Open) -> None:
    page = open_page(one_missing(tmp_path / "files"), width=1000, height=700)
    for axis in ("order", "time"):
        page.check(f"input[value={axis}]")
        box = page.locator("#chart").bounding_box()
        # The second row is rank 0, which waits. Its last call is just inside the right edge.
        page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 22 + 20 + 10)
        assert "rank 0 (waiting): all_reduce number 3" in page.inner_text("#details")
        page.keyboard.press("Escape")


def test_the_wheel_zooms_and_dragging_moves(tmp_path: Path, open_page: Open) -> None:
    page = open_page(one_missing(tmp_path / "files"), width=1000, height=700)
    box = page.locator("#chart").bounding_box()
    x, y = box["x"] + 124, box["y"] + 22 + 20 + 10
    page.mouse.move(x, y)
    before = pixels(page, "amberbg")
    for _ in range(6):
        page.mouse.wheel(0, -300)
    assert pixels(page, "amberbg") < before
    page.mouse.down()
    page.mouse.move(x - 400, y, steps=4)
    page.mouse.up()
    page.focus("#chart")
    page.keyboard.press("0")
    assert pixels(page, "amberbg") == before


def test_what_the_files_hold_is_shown_and_not_run(tmp_path: Path, open_page: Open) -> None:
    page = open_page(hostile_folder(tmp_path / "files"))
    assert page.title() == "missing_rank: rank 2 - otel-fr"
    assert "</script><script>" in page.inner_text("h1")
    page.focus("#chart")
    page.keyboard.press("w")
    assert "</script><script>" in page.inner_text("#details")


def test_a_page_without_a_fault_and_one_without_a_readable_file(tmp_path: Path, open_page: Open) -> None:
    healthy = DUMPS / "fr01_matched_allreduce_and_singletons"
    assert open_page(healthy).inner_text("h1").startswith("No fault found")
    (tmp_path / "none").mkdir()
    assert "could be read" in open_page(tmp_path / "none").inner_text("h1")


def test_files_without_times_are_shown_in_order_only(open_page: Open) -> None:
    folder = DUMPS / "tc01_torchcomms_json_hang"
    page = open_page(folder)
    page.focus("#chart")
    page.keyboard.press("t")
    assert page.is_disabled("input[value=time]") is not page.is_checked("input[value=time]")
    page.keyboard.press("c")
    assert "all_reduce number 4 of group gloo (main_comm), NOT MADE" in page.inner_text("#details")


def test_the_tables_stay_within_the_page_on_a_narrow_screen(open_page: Open) -> None:
    folder = DUMPS / "nvrx_lock_gil_2nd"
    page = open_page(folder, width=400, height=800)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
