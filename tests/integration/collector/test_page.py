"""The page in a real browser: live, usable by keyboard, readable by day and night, safe for any job name."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from otel_fr import presentation
from otel_fr.identity import encode_ranks
from otel_fr.match import Place
from tests.support.collector_process import running
from tests.support.played_job import Job
from tests.support.ports import free_address
from tests.support.staged_collector import Stage
from tests.support.waiting import PATIENCE
from tests.support.watched_page import Watched, expectation

expect = expectation()
HOSTILE = '<img src=x onerror="alert(1)">\'"&<script>alert(2)</script>/../\u202e{{7*7}}'


def test_a_cause_folds_its_consequences_and_says_how_long_it_lasts(stage: Stage, browser: Any) -> None:
    run = stage.job(8)
    stage.hang(run, 5, with_consequence=True)
    with Watched(browser).used() as watched:  # the page's clock stays as set here
        page = watched.page
        page.clock.install(time=time.time())
        page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
        expect(page.locator("#open [data-item]")).to_have_count(1)
        folded = page.locator("#open .caused")
        expect(folded.locator("summary")).to_have_text("1 consequence")
        expect(folded.get_by_role("link")).to_be_hidden()
        expect(page.locator("#past [data-item]")).to_have_count(0)
        expect(page.locator("#open .since")).to_have_text(re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, for \d+ s"))
        page.clock.fast_forward(300_000)
        expect(page.locator("#open .since")).to_contain_text("for 5 min")
        page.keyboard.press("i")
        expect(page.locator("#incidents [data-item]")).to_have_count(1)
        page.locator("#incidents .caused summary").click()
        page.locator("#incidents .caused").get_by_role("link").click()
        expect(page.locator("main")).to_contain_text("A consequence of incident")


def test_an_address_that_leads_nowhere_says_so(stage: Stage, page: Any) -> None:
    for address in ("nothing", "incidents/%", "jobs/%E0%A4%A", "%"):
        page.goto(f"{stage.url}/#/{address}")
        expect(page.locator("h1")).to_have_text("Page not found")
        page.get_by_role("link", name="All jobs").click()
        expect(page.locator("h1")).to_have_text("Jobs")


def test_a_list_from_before_the_stream_broke_replaces_no_newer_one(stage: Stage, page: Any) -> None:
    stage.hang(stage.job(8), 5)
    slow: list[Any] = []
    page.route("**/api/v1/events", lambda route: route.fulfill(body=""), times=1)  # a stream that ends at once
    page.route("**/api/v1/incidents?view=brief*", lambda route: slow.append(route), times=1)
    page.goto(f"{stage.url}/#/incidents")
    expect(page.locator("#open-count")).to_have_text("1")
    with page.expect_event("requestfinished", lambda one: one == slow[0].request):
        slow[0].fulfill(json={"incidents": []})
    stage.hang(stage.job(8, "job-8"), 5)
    expect(page.locator("#open-count")).to_have_text("2")


def test_an_incident_links_to_its_runbook(stage: Stage, page: Any) -> None:
    number = stage.hang(stage.job(8), 5)["id"]
    page.goto(f"{stage.url}/#/incidents/{number}")
    advice = next(one.data["what_to_do"] for one in stage.service.book.known() if one.id == number)
    expect(page.locator(".answer .advice")).to_have_text(advice)
    page.get_by_role("link", name="Runbook").click()
    expect(page.locator("h1")).to_have_text("missing_rank: a live rank did not join")
    expect(page.locator("h2#typical-causes")).to_be_visible()
    page.get_by_role("link", name="Incidents").click()
    expect(page.locator("#incidents [data-item]")).to_have_count(1)


def test_an_incident_that_is_in_no_list_is_not_loaded_again_and_again(stage: Stage, page: Any) -> None:
    """What the reader has opened in it would close each time."""
    number = stage.hang(stage.job(8), 5)["id"]
    page.route("**/api/v1/incidents?view=brief*", lambda route: route.fulfill(json={"incidents": []}))
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if one.url.endswith(number) else None)
    with page.expect_event("requestfinished", lambda one: "view=brief" in one.url):
        page.goto(f"{stage.url}/#/incidents/{number}")
    expect(page.locator("h1")).to_contain_text("rank 5")
    counts = []
    for others in (1, 2):
        stage.hang(stage.job(8, f"other-{others}"), 5)
        expect(page.locator("#open-count")).to_have_text(str(others))
        page.evaluate("0")  # earlier requests have been noticed
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_an_incident_that_comes_before_the_list_shows_its_consequences_with_it(stage: Stage, page: Any) -> None:
    number = stage.hang(stage.job(8), 5, with_consequence=True)["id"]
    lists: list[Any] = []
    page.route("**/api/v1/incidents?view=brief*", lambda route: lists.append(route), times=1)
    page.goto(f"{stage.url}/#/incidents/{number}")
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator("#live")).to_have_text("live")
    lists[0].continue_()
    expect(page.get_by_role("heading", name="Consequences")).to_be_visible()


def test_what_a_busy_collector_refuses_is_asked_for_again(stage: Stage, watched: Watched) -> None:
    page, run = watched.page, stage.job(8)
    stage.hang(run, 5)
    busy = {"error": "too many answers are in flight; ask again later"}
    page.route("**/api/v1/incidents/*?view=brief", lambda route: route.fulfill(status=503, json=busy), times=1)
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    expect(page.locator("#answer dt", has_text="waiting")).to_be_visible()  # the list does not say how many wait
    assert "503" in watched.problems.pop()
    page.route("**/api/v1/incidents?view=brief*", lambda route: route.fulfill(status=503, json=busy), times=1)
    page.reload()
    expect(page.locator("#open-count")).to_have_text("1")
    assert "503" in watched.problems.pop()
    page.route("**/api/v1/jobs?state=finished*", lambda route: route.fulfill(status=503, json=busy), times=1)
    stage.end(stage.job(2, "over"))
    page.goto(f"{stage.url}/#/")
    expect(page.locator("#finished [data-item]")).to_have_count(1)
    assert "503" in watched.problems.pop()


def test_older_incidents_are_offered_only_if_there_are_some(stage: Stage, page: Any) -> None:
    """A fake answer says that there are some, because the collector has only one incident."""
    number = stage.hang(stage.job(8), 5)["id"]
    asked = "**/api/v1/incidents?*limit=1&*"
    older = page.locator("button", has_text="Older").first
    with page.expect_response(asked):
        page.goto(f"{stage.url}/#/incidents")
    expect(page.locator("#incidents [data-item]")).to_have_count(1)
    expect(older).to_be_hidden()
    page.route(asked, lambda route: route.fulfill(json={"incidents": [{"id": number}]}))
    with page.expect_response(asked):
        page.reload()
    expect(page.locator("#incidents [data-item]")).to_have_count(1)
    expect(older).to_be_visible()


def test_everything_is_reached_by_keyboard(stage: Stage, page: Any) -> None:
    run = stage.job(8)
    stage.job(4, "another")
    stage.hang(run, 5)
    page.goto(stage.url + "/")
    expect(page.locator("#jobs [data-item]")).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("job-7")
    expect(page.locator("#grid tbody tr")).to_have_count(8)
    page.keyboard.press("o")
    expect(page.locator("#outliers")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#grid tbody tr")).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("rank 5")
    page.keyboard.press("u")
    expect(page.locator("h1")).to_have_text("job-7")
    page.keyboard.press("i")
    page.get_by_label("Filter incidents").fill("j")  # in a field, a letter is no shortcut
    expect(page.locator("#incidents [data-item]")).to_have_count(1)
    page.get_by_label("Filter incidents").fill("no such words")
    expect(page.locator("#incidents [data-item]")).to_have_count(0)
    page.get_by_role("button", name="Resolved").focus()
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.get_by_label("Single keys are shortcuts").uncheck()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_hidden()
    page.locator("#keys").click()
    page.get_by_label("Single keys are shortcuts").check()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    expect(page.locator("h1")).to_have_text("Jobs")


def test_what_is_focused_stays_so_while_the_page_changes(stage: Stage, page: Any) -> None:
    run = stage.job(8)
    page.goto(stage.url + "/")
    expect(page.locator("#jobs [data-item]")).to_have_count(1)
    page.keyboard.press("j")
    focused = page.locator("#jobs [data-item]:focus")
    expect(focused).to_have_count(1)
    stage.hang(run, 1)
    expect(focused).to_contain_text("rank 1 did not join")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_by_day_and_by_night(stage: Stage, watched: Watched, scheme: str) -> None:
    """All visible text has a contrast of at least 4.5 to 1, as WCAG 2.2 asks (1.4.3)."""
    run = stage.job(8)
    stage.communicate(run)
    number = stage.hang(run, 5)["id"]
    page = watched.page
    page.emulate_media(color_scheme=scheme)
    for place in ("/", f"/#/jobs/{stage.key(run)}", f"/#/incidents/{number}", "/#/incidents"):
        page.goto(stage.url + place)
        expect(page.locator("main .badge").first).to_be_visible()
        assert page.evaluate("() => document.documentElement.dataset.theme") == scheme
        assert page.evaluate(_LOW_CONTRAST) == []
    page.keyboard.press("t")
    page.keyboard.press("t" if scheme == "light" else "?")
    other = "dark" if scheme == "light" else "light"
    expect(page.locator("html")).to_have_attribute("data-theme", other)
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", other)


_LOW_CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color.length < 4 || color[3] > 0.99) return color;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest(".skip, noscript")) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) bad.push([node.className, node.textContent.slice(0, 40), ratio.toFixed(2)]);
  }
  return bad;
}"""


def test_a_hostile_name_is_only_text(stage: Stage, watched: Watched) -> None:
    run = stage.job(8, HOSTILE)
    for state in run.ranks.values():
        state.place, state.exception = Place(HOSTILE), HOSTILE
    number = stage.hang(run, 5)["id"]
    page, unknown = watched.page, quote(HOSTILE, safe="")
    for place in ("/", f"/#/jobs/{stage.key(run)}", f"/#/incidents/{number}", "/#/incidents", f"/#/jobs/{unknown}"):
        page.goto(stage.url + place)
        expect(page.locator("h1:not(:empty)").first).to_be_visible()
        expect(page.locator("main img, main script")).to_have_count(0)
    expect(page.locator("h1")).to_have_text("Unknown job")
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    expect(page.locator("h1")).to_have_text(HOSTILE)
    # The page reports that the job is unknown. The browser logs the 404 as an error.
    watched.problems = [text for text in watched.problems if "404" not in text]


def test_nothing_foreign_could_run_or_be_loaded(stage: Stage) -> None:
    from urllib.request import urlopen

    for path in ("/", "/page/app.js", "/page/app.css"):
        with urlopen(stage.url + path, timeout=PATIENCE) as answer:
            policy = dict(
                part.strip().partition(" ")[::2] for part in answer.headers["Content-Security-Policy"].split(";")
            )
            assert policy["default-src"] == "'none'"
            assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
            assert policy["frame-ancestors"] == "'none'"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_lost_collector_is_reported_and_found_again(tmp_path: Path, watched: Watched) -> None:
    page, address = watched.page, free_address()
    with running(tmp_path, "--http", address) as collector, Job(collector, 2) as job:
        job.step()
        page.goto(collector.http + "/")
        expect(page.locator("#jobs [data-item]")).to_have_count(1)
        collector.kill()
        expect(page.locator("#live")).to_contain_text("connection lost")
    (tmp_path / "again").mkdir()
    with running(tmp_path / "again", "--http", address) as second, Job(second, 2, job_id="after") as job:
        job.step()
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator("#jobs")).to_contain_text("after")
        page.goto("about:blank")
    watched.problems.clear()  # the browser logs each lost connection as an error


def test_a_collector_that_asks_for_a_token_is_given_it(stage: Stage, watched: Watched) -> None:
    """The page asks once, and sends the token with all requests, including the live stream."""
    stage.job(4)
    seen: list[str | None] = []

    def guard(route: Any) -> None:
        token = route.request.headers.get("authorization")
        seen.append(token)
        if token == "Bearer secret-1":
            route.continue_()
        else:
            route.fulfill(status=401, body=json.dumps({"error": "a token is required"}))

    page = watched.page
    page.route("**/api/v1/**", guard)
    page.goto(stage.url + "/")
    page.get_by_role("textbox", name="Token").fill("secret-1")
    page.keyboard.press("Enter")
    expect(page.locator("#jobs [data-item]")).to_have_count(1)
    expect(page.locator("#live")).to_have_text("live")
    assert seen[0] is None
    assert set(seen[1:]) == {"Bearer secret-1"}
    watched.problems = [text for text in watched.problems if "401" not in text]


RANKS: list[list[int]] = [
    [], [5], [1, 0, 1], [0, 1, 2, 5], [0, 2, 4, 6], list(range(5, 70, 8)), [0, 1, 3, 5, 7, 9, 11],
    [*range(0, 99, 7), 50],
]  # fmt: skip
SECONDS = [0.0, 4.46, 99.4, 725.0, 18_720.0, 273_600.0]
NOWHERE: dict[str, Any] = dict.fromkeys(("host", "pid", "local_rank", "gpu", "pod", "node", "namespace"))
PLACES = [
    NOWHERE,
    {**NOWHERE, "host": "gpu-17", "pid": 4711, "local_rank": 3, "gpu": "5"},
    {**NOWHERE, "host": "llama-0", "node": "gpu-17", "local_rank": 0},
    {**NOWHERE, "host": "llama-0", "node": "gpu-17", "pod": "llama-0"},
    {**NOWHERE, "host": "llama-0", "node": "gpu-17", "pod": "llama-0", "namespace": "train"},
    {**NOWHERE, "pod": "llama-0"},
]
GROUPS = [("3", "dp"), ("3", ""), ("3", "undefined"), ("tp", "tp")]
OVERDUE = [("section", "loading", 45.0, 30.0), ("heartbeat", "", 700.0, 60.0), ("outside", "", 9.0, 3.0)]
SAME: dict[str, list[tuple[list[object], str]]] = {
    "ranksText": [([ranks], presentation.ranks_text(ranks)) for ranks in RANKS],
    "rankList": [([ranks], presentation.rank_list(ranks)) for ranks in RANKS],
    "groupText": [
        ([{"name": name, "description": text}], presentation.group_text(name, text)) for name, text in GROUPS
    ],
    "collectiveText": [([name, at], presentation.collective_text(name, at)) for name, at in (("a", 5), ("b", None))],
    "siteText": [([None], presentation.site_text(None))],
    "durationText": [([seconds], presentation.duration_text(seconds)) for seconds in SECONDS],
    "agoText": [([seconds], presentation.ago_text(seconds)) for seconds in SECONDS],
    "placeText": [([place], presentation.place_text(**place)) for place in PLACES],
    "overdueText": [([one], presentation.overdue_text(*one)) for one in OVERDUE],
    "rankStateText": [([state], presentation.rank_state_text(state)) for state in ("running", "unheard", "killed")],
    "stateSummary": [
        ([{"state": state, "summary": "it hangs"}], presentation.state_summary("it hangs", state))
        for state in ("firing", "resolved")
    ],
}
"""Function of page/text.js -> arguments, and the result of the Python function of the same name."""


def test_the_page_writes_ranks_groups_and_durations_as_the_terminal_does(stage: Stage, watched: Watched) -> None:
    watched.page.goto(stage.url + "/")
    for name, cases in SAME.items():
        assert watched.texts(name, [given for given, _ in cases]) == [text for _, text in cases], name
    encoded = [[encode_ranks(sorted(set(ranks)))] for ranks in RANKS]
    assert watched.texts("decodeRanks", encoded) == [sorted(set(ranks)) for ranks in RANKS]
