"""The card at the top of a job's and an incident's page, which must agree with the page below."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest
from otel_fr_collector.jobs.run import Run

from otel_fr.match import Category, Ending, Finding, Place
from otel_fr.rank_report import RankReport, ReportedRoundTrip
from tests.support.collector_process import running
from tests.support.played_job import Job
from tests.support.staged_collector import Stage
from tests.support.watched_page import Watched, expectation

expect = expectation()


def test_the_answer_comes_first_and_the_rest_is_folded(stage: Stage, page: Any) -> None:
    run = stage.job(8)
    stage.service.links.alertmanager = "http://alertmanager:9093"
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    expect(page.locator("#grid tbody tr")).to_have_count(8)
    expect(page.locator("#answer")).to_be_hidden()
    number = stage.hang(run, 5, with_consequence=True)["id"]
    for place in (f"/#/jobs/{stage.key(run)}", f"/#/incidents/{number}"):
        page.goto(stage.url + place)
        card = page.locator(".answer")
        expect(card.locator("h1, h2")).to_contain_text("node-0, local rank 5, pid 4005")
        expect(card.locator("dd code")).to_have_text("load data.py:17")
        expect(card.locator("dd code")).to_have_attribute("title", "/job/data.py:17 load")
        expect(card.locator("dl")).to_contain_text("7 ranks")
        expect(card.locator("[data-part=category]")).to_have_text("missing_rank")
        expect(card.locator(".command")).to_have_text("ssh node-0 py-spy dump --pid 4005")
        expect(card.locator(".advice")).not_to_be_empty()
        silence = card.get_by_role("link", name="Silence").get_attribute("href")
        assert silence.startswith("http://alertmanager:9093/#/silences/new?filter=%7B")
        assert "job_id%3D%22job-7%22" in silence
        expect(card.locator("pre")).to_be_hidden()
        card.locator("summary", has_text="Stack of rank 5").click()
        expect(card.locator("pre")).to_contain_text("data.py")
        expect(page.locator("details.fold[open]")).to_have_count(0)
    for text in ("step train.py:42", "7 ranks: 0-4, 6, 7"):
        expect(page.locator("main")).to_contain_text(text)
    stage.recover(run)
    expect(page.locator(".answer.resolved")).to_be_visible()
    expect(page.locator(".answer .command")).to_have_count(0)


COMMANDS = {
    Place("llama-0", 7, 0, node="gpu-17", pod="llama-0"): "kubectl exec llama-0 -- py-spy dump --pid 7",
    Place("llama-0", 7, pod="llama-0", namespace="train"): "kubectl exec -n train llama-0 -- py-spy dump --pid 7",
    Place("llama-0", 7, pod="llama-0", namespace="-x"): "kubectl exec llama-0 -- py-spy dump --pid 7",
    Place("c0ffee", 7, node="gpu-17"): "ssh gpu-17 py-spy dump --pid 7",
    Place("$(reboot)", 7): "py-spy dump --pid 7",
    Place("-oProxyCommand=x", 7): "py-spy dump --pid 7",
    Place("gpu-17"): "",
}


def test_the_debug_command_is_safe_to_paste(stage: Stage, watched: Watched) -> None:
    page, run = watched.page, stage.job(2)
    number = stage.hang(run, 1)["id"]
    page.goto(f"{stage.url}/#/incidents/{number}")
    assert watched.texts("debugCommand", [[place._asdict()] for place in COMMANDS]) == list(COMMANDS.values())
    command = "ssh node-0 py-spy dump --pid 4001"
    expect(page.locator(".command")).to_have_text(command)
    # An update of the incident replaces the button, so its texts are noted. The text for the clipboard is noted, too.
    page.evaluate(
        """() => {
          window.said = [];
          new MutationObserver((all) => window.said.push(...all.map((one) => one.target.textContent)))
            .observe(document.body, { childList: true, characterData: true, subtree: true });
          navigator.clipboard.writeText = async (text) => { window.copied = text; };
        }"""
    )
    page.get_by_role("button", name="Copy").click()
    page.wait_for_function("() => window.said.includes('Copied')")
    assert page.evaluate("() => window.copied") == command


def test_paths_are_as_long_as_it_takes_to_tell_files_apart(stage: Stage, watched: Watched) -> None:
    watched.page.goto(stage.url + "/")
    shown = watched.page.evaluate(
        """async (sites) => {
          const { siteShortener } = await import(new URL("page/text.js", location.href));
          return [...sites, "", "no site"].map(siteShortener(sites));
        }""",
        ["/a/b/data.py:9 load", "/a/c/data.py:9 load", "/a/train.py:1 main", "data.py:3"],
    )
    assert shown == [
        "load b/data.py:9", "load c/data.py:9", "main train.py:1", "data.py:3", "location not known", "no site"
    ]  # fmt: skip


def test_slowness_is_a_warning(stage: Stage, page: Any) -> None:
    run = stage.job(8)
    world = next(iter(run.groups.values())).group
    finding = Finding(
        key="late", rule="straggler", category=Category.STRAGGLER, group=world, operation="", sequence_id=None,
        stream="collective", culprit_ranks=(3,), waiting_ranks=(0, 1), summary="rank 3 comes last",
    )  # fmt: skip

    async def publish() -> Any:
        return stage.publish(run, [finding], time.monotonic())

    stage.do(publish())
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    expect(page.locator("#answer .answer.warning h2")).to_contain_text("rank 3")
    expect(page.locator("#tally")).to_have_text("1 slow7 running")
    page.keyboard.press("g")
    expect(page.locator("#jobs .item.slow")).to_have_count(1)


def test_hosts_whose_link_is_slow_are_named(stage: Stage, page: Any) -> None:
    run = stage.job(16)
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    expect(page.locator("#tally")).to_have_text("16 running")
    expect(page.locator("#links")).to_be_hidden()
    for rank, own, trips in ((0, "10.0.0.1", (("10.0.0.2", 0.41),)), (8, "10.0.0.2", ())):
        said = tuple([ReportedRoundTrip(*trip) for trip in trips])
        run.ranks[rank].report = RankReport(rank, 10, (), idle_s=0.1, addresses=(own,), round_trips=said)
    page.reload()
    expect(page.locator("#links li")).to_contain_text("node-0 and node-1 takes 410 ms")


def test_a_victim_waits_and_nobody_else_is_accused(tmp_path: Any, page: Any) -> None:
    """Rank 2 does not join its pair, where rank 3 waits for it. So both are behind in the group of all ranks."""
    with running(tmp_path) as collector, Job(collector, 4) as job:
        pair = job.group("1", [2, 3], "tensor_parallel")
        job.step(pair)
        job.step()
        for rank, group in ((3, pair), (0, job.world), (1, job.world)):
            job.ranks[rank].issue(group)
            page.goto(collector.http + "/")
        page.locator("#jobs .item.incident").click()
        states = page.locator("#grid tbody td:nth-child(2)")
        expect(states).to_have_text(["waiting", "waiting", "culprit", "waiting"])
        expect(page.locator("#tally")).to_have_text("1 culprit3 waiting")
        expect(page.locator("#grid tr[data-rank='3'] .s-behind")).to_have_count(0)
        page.locator("#communication summary").click()
        expect(page.locator("#strip-text")).to_contain_text("Waited for most since the start: rank 2: ")
        page.goto("about:blank")


def end_all(stage: Stage, run: Run) -> None:
    """Stop all ranks, one 3 s later with SIGKILL."""

    async def end() -> None:
        for state in run.ranks.values():
            state.ended, state.ending, state.signal = time.monotonic(), Ending.KILLED, signal.SIGTERM
        state = run.ranks[7]
        state.ended, state.signal = time.monotonic() + 3.0, signal.SIGKILL

    stage.do(end())


def test_ranks_that_their_user_stopped_are_no_deaths(stage: Stage, page: Any) -> None:
    run = stage.job(8)
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    expect(page.get_by_role("button", name="Stacks of all ranks")).to_be_visible()
    end_all(stage, run)
    page.reload()
    expect(page.locator(".badge.stopped")).to_have_text("stopped")
    expect(page.locator("#tally")).to_have_text("8 stopped")
    expect(page.locator("#nodes .sw-stopped")).to_have_count(8)
    expect(page.locator("main")).to_contain_text("8 stopped of 8 ranks")
    expect(page.get_by_role("button", name="Stacks of all ranks")).to_be_hidden()


@pytest.mark.parametrize("rules", [["otherwise"], ["otherwise", "fault_repeats"]])
def test_advice_that_only_repeats_the_incident_is_not_shown(stage: Stage, page: Any, rules: list[str]) -> None:
    run = stage.job(8)
    stage.hang(run, 5)
    end_all(stage, run)
    reasons = [{"rule": rule, "text": f"because of {rule}"} for rule in rules]
    answer = json.dumps({"recommendation": "stop", "exclude_nodes": [], "reasons": reasons})
    page.route("**/api/v1/attribution?*", lambda route: route.fulfill(body=answer))
    with page.expect_response("**/api/v1/attribution?*"):
        page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    if rules == ["otherwise"]:
        expect(page.locator("#advice")).to_have_text("Next: do not restart: stop the job ().")  # asked for here
        expect(page.locator("#advice")).to_be_hidden()
    else:
        expect(page.locator("#advice")).to_have_text("Next: do not restart: stop the job (because of fault_repeats).")
