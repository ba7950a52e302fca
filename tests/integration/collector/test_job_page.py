"""The jobs' pages in a real browser: ranks, their activity, and the costs of communication."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from otel_fr_collector.jobs.rank_reports import Contents
from otel_fr_collector.network.tokens import Access
from otel_fr_collector.storage.batch import FinishedJob
from otel_fr_collector.web.job_views import summary

from otel_fr.match import Ending
from otel_fr.match.model import Overdue
from tests.support.collector_process import running
from tests.support.played_job import Job
from tests.support.staged_collector import Stage
from tests.support.watched_page import Watched, expectation

expect = expectation()


def test_a_hang_shows_and_goes_without_a_reload(tmp_path: Path, page: Any) -> None:
    """From ranks' reports through a real collector to the browser."""
    with running(tmp_path) as collector, Job(collector, 8) as job:
        page.goto(collector.http + "/")
        expect(page.locator("#live")).to_have_text("live")
        job.step()
        item = page.locator("#jobs [data-item]")
        expect(item).to_contain_text("8 of 8 ranks alive")
        item.click()
        expect(page.locator("#grid tbody tr")).to_have_count(8)
        waiting = job.skip(3)
        expect(page.locator("#answer h2")).to_contain_text("rank 3")
        expect(page.locator("#answer .summary")).to_contain_text("rank 3 (node-0) did not join all_reduce number 2")
        expect(page.locator("#grid tr[data-rank='3'] td").first).to_have_text("culprit")
        expect(page.locator("#open-count")).to_have_text("1")
        expect(page.locator("#grid tr[data-rank='0']")).to_contain_text("in all_reduce number 2 for")
        job.go_on(waiting)
        expect(page.locator("#open [data-item]")).to_have_count(0)
        expect(page.locator("#past [data-item]")).to_contain_text("resolved")
        expect(page.locator("#past [data-item]")).to_contain_text("while it fired: rank 3 (node-0) did not join")
        expect(page.locator("#open-count")).to_be_hidden()
        expect(page.locator("#grid tr[data-rank='3'] td").first).to_have_text("running")
        page.goto("about:blank")


def test_a_thousand_ranks_are_a_row_for_each_host(stage: Stage, page: Any) -> None:
    """The host that differs comes first, and each row has its state in words."""
    run = stage.job(1_024)
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    rows, cells = page.locator("#nodes [role=row]"), page.locator("#nodes [role=gridcell]")
    expect(rows).to_have_count(128)
    expect(cells).to_have_count(1_024)
    expect(page.locator("#differ")).to_have_text("128 hosts")
    stage.hang(run, 717)
    expect(page.locator("#tally")).to_have_text("1 culprit1,023 waiting")
    expect(page.locator("#differ")).to_have_text("128 hosts; ranks differ on node-89")
    expect(rows.first.get_by_role("rowheader")).to_have_accessible_name("node-89: 1 culprit, 7 waiting")
    expect(rows.first.get_by_role("gridcell", name="rank 717: culprit")).to_have_class("sw-culprit")
    expect(rows.nth(1).get_by_role("gridcell").first).to_have_accessible_name("rank 0: waiting")
    expect(page.locator("#grid tbody tr")).to_have_count(1)
    expect(page.locator("#grid tr[data-rank='717']")).to_contain_text("load data.py:17")


def test_a_job_that_is_over_stays_in_the_list_with_its_ranks(stage: Stage, page: Any) -> None:
    run = stage.job(8)
    page.goto(stage.url + "/")
    expect(page.locator("#jobs [data-item]")).to_have_count(1)
    expect(page.get_by_role("heading", name="Finished jobs")).to_be_hidden()
    stage.end(run)
    over = page.locator("#finished [data-item]")
    expect(over).to_contain_text("8 ended of 8 ranks")
    expect(page.locator("#jobs [data-item]")).to_have_count(0)
    page.reload()
    expect(over).to_contain_text("8 ended of 8 ranks")
    expect(page.locator("main")).to_contain_text("No job runs now.")
    over.click()
    expect(page.locator("h1")).to_have_text("job-7")
    expect(page.locator("#grid tbody tr")).to_have_count(8)
    expect(page.locator("#grid tr[data-rank='3'] td").first).to_have_text("ended")


def test_a_job_of_another_collector_is_listed_and_leads_to_its_page(
    stage: Stage, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = stage.job(2, "here"), stage.job(2, "elsewhere")

    async def move() -> None:
        service, finished = stage.service, stage.finished
        shown = await summary(other, service.book, time.monotonic(), time.time())
        shown["collector_page"] = "https://other.example/fr"
        service.runs.by_id.pop(other.id)
        finished._keep(FinishedJob(stage.key(other), other.id.job, time.time() + 60.0, json.dumps(shown), b""))

        async def elsewhere(_: Access) -> list[object]:
            return [shown]

        monkeypatch.setattr(finished, "elsewhere", elsewhere)

    stage.do(move())
    page.goto(stage.url + "/")
    items = page.locator("#jobs [data-item]")
    expect(items).to_have_count(2)
    expect(items.filter(has_text="here").first).to_have_attribute("href", f"#/jobs/{stage.key(run)}")
    elsewhere = page.locator("#jobs a", has_text="elsewhere")
    expect(elsewhere).to_have_attribute("href", f"https://other.example/fr#/jobs/{stage.key(other)}")
    expect(elsewhere).to_contain_text("2 of 2 ranks alive")
    page.goto(f"{stage.url}/#/jobs/{stage.key(other)}")
    expect(page.locator("h1")).to_have_text("elsewhere")
    expect(page.get_by_role("button", name="Stacks of all ranks")).to_be_hidden()


def test_what_is_open_in_another_run_of_the_same_name_is_not_open_here(stage: Stage, page: Any) -> None:
    hung, healthy = stage.job(8), stage.job(16, run_id="other")
    stage.hang(hung, 5)
    page.goto(f"{stage.url}/#/jobs/{stage.key(hung)}")
    expect(page.locator("#open [data-item]")).to_have_count(1)
    page.goto(f"{stage.url}/#/jobs/{stage.key(healthy)}")
    expect(page.locator("#grid tbody tr")).to_have_count(16)
    expect(page.locator("#open [data-item]")).to_have_count(0)


def test_stacks_of_all_ranks_are_asked_for_and_merged(stage: Stage, page: Any) -> None:
    run = stage.job(8)
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    page.get_by_role("button", name="Stacks of all ranks").click()
    expect(page.locator("main")).to_contain_text("No rank of this job can be asked")
    monitors = stage.watch(run)
    page.get_by_role("button", name="Stacks of all ranks").click()
    expect(page.locator("main")).to_contain_text("No answer from ranks 0-7")
    assert monitors.next_command().HasField("take_stacks")
    stage.answer_stacks(run, {rank: "step" if rank != 5 else "load" for rank in range(8)})
    expect(page.locator("#stacks details")).to_have_count(2)
    expect(page.locator("#stacks")).to_contain_text("7 here: ranks 0-4, 6, 7 step train.py:42")
    expect(page.locator("#stacks")).to_contain_text("1 here: rank 5 load train.py:42")
    expect(page.locator("main")).not_to_contain_text("No answer")


def test_what_ranks_do_shows_in_their_rows(stage: Stage, page: Any) -> None:
    """The step, an overdue section, and an error that is longer than a row."""
    run = stage.job(8)

    async def change() -> None:
        for state in run.ranks.values():
            assert state.report is not None
            state.report = structs.replace(state.report, step=40 + state.rank)
        run.ranks[3].contents = Contents(overdue=(Overdue("section", "dataloading", 45.0, 30.0),))
        run.ranks[2].ending, run.ranks[2].exception = Ending.RAISED, "RuntimeError: " + "gloo " * 100

    stage.do(change())
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    page.locator("#ranks summary").click()
    row = page.locator("#grid tr[data-rank='3']")
    expect(row).to_contain_text("43")
    expect(row).to_contain_text("section dataloading open for 45.0 s (limit 30.0 s)")
    raised = page.locator("#grid tr[data-rank='2']")
    expect(raised.locator("td").first).to_have_text("raised")
    expect(raised).to_contain_text("RuntimeError: gloo")
    assert raised.bounding_box()["height"] < 200
    expect(raised.locator("td").last).to_have_attribute("title", re.compile("gloo $"))


def test_arrow_keys_move_over_the_map_which_describes_each_rank(stage: Stage, page: Any) -> None:
    run = stage.job(256)
    stage.hang(run, 70)
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    expect(page.locator("#nodes [role=row]")).to_have_count(32)
    expect(page.locator("#grid tbody tr")).to_have_count(1)
    expect(page.locator("#nodes [tabindex='0']")).to_have_count(1)
    page.keyboard.press("m")
    said, focused = page.locator("#said"), page.locator("#nodes :focus")
    expect(said).to_contain_text("rank 70; culprit; group default_pg (0): 100 enqueued, 100 completed; 1 behind")
    expect(focused).to_have_accessible_name(re.compile(r"rank 70; culprit; group default_pg \(0\)"))
    expect(focused).to_have_css("outline-style", "solid")
    page.keyboard.press("ArrowDown")  # the next host begins with rank 0
    expect(said).to_contain_text("rank 6; waiting; group default_pg (0): 101 enqueued, 100 completed")
    page.keyboard.press("End")
    expect(said).to_contain_text("rank 255")
    page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("rank 255")
    expect(page.locator("#grid")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#grid tr.picked")).to_contain_text("in all_reduce number 101 for")
    expect(focused).to_have_attribute("aria-selected", "true")
    expect(page.locator("#nodes [tabindex='0']")).to_have_count(1)


def test_what_the_communication_costs_is_charts_and_a_sentence(stage: Stage, watched: Watched) -> None:
    page, run = watched.page, stage.job(8)
    stage.communicate(run)
    group = next(iter(run.groups.values())).group
    page.goto(f"{stage.url}/#/")
    expect(page.locator("#jobs .item")).to_contain_text(f"Rank 1 slows the job down: {group.description} waited for it")
    # At first, as from a collector that has restarted.
    page.route("**/rates", lambda route: route.fulfill(status=404, json={"error": "no such running job"}), times=1)
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    expect(page.locator("#slowest")).to_have_text(
        f"Rank 1 slows the job down: {group.description} waited for it for 40 % of the latest 50.0 s."
    )
    assert "404" in watched.problems.pop()
    expect(page.locator("#charts canvas")).to_have_count(5)
    expect(page.locator("#strip canvas")).to_have_count(1)
    expect(page.locator("#strip-text")).to_contain_text("rank 1: 12.5 s in 90 collectives")
    expect(page.locator("#operations tbody tr")).to_have_count(1)
    expect(page.locator("#operations")).to_contain_text("400 ms at <b>step</b> train.py:7")
    expect(page.locator("#operations")).to_contain_text("100 ms (queue 60 ms, device 40 ms)")
    expect(page.locator("#rates")).to_contain_text("groups wait for their last rank for")
    page.keyboard.press("t")  # charts change to the other theme's colours
