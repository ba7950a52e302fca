"""A job of thousands of ranks: hosts in equal states are ranges; ranks are listed if they differ or are asked for."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from msgspec import structs
from otel_fr_collector.jobs.rank_reports import NOTHING
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.web import node_map
from otel_fr_collector.web.job_detail import MAX_GROUPS, MAX_WHOLE
from otel_fr_collector.web.job_views import summary

from otel_fr.api_answers import JobDetail
from otel_fr.identity import decode_ranks
from otel_fr.match import Ending
from tests.support.job_answers import job_answer
from tests.support.staged_collector import Stage
from tests.support.waiting import PATIENCE
from tests.support.watched_page import expectation

SIZES = [2_048, 12_288]


def ask(stage: Stage, run: Run, *asked: int) -> JobDetail:
    async def make() -> JobDetail:
        return await job_answer(run, stage.service.book, stage.service.clock(), stage.service.wall(), *asked)

    return stage.do(make())


def kill(stage: Stage, run: Run, *ranks: int) -> None:
    async def end() -> None:
        for rank in ranks:
            run.ranks[rank].ended, run.ranks[rank].ending, run.ranks[rank].signal = 1.0, Ending.KILLED, 9

    stage.do(end())


def hosts(job: JobDetail) -> list[tuple[str, str, dict[Any, int]]]:
    return [(one["first"], one["last"], one["states"]) for one in job["nodes"]]


@pytest.mark.parametrize("world", SIZES)
def test_a_healthy_job_is_one_range_of_hosts(stage: Stage, world: int) -> None:
    """The answer is one range for any number of ranks."""
    found = ask(stage, stage.job(world))
    assert hosts(found) == [("node-0", f"node-{world // 8 - 1}", {"running": world})]
    assert (found["nodes"][0]["ranks"], found["nodes"][0]["hosts"]) == (f"0-{world - 1}", world // 8)
    assert (found["ranks"]["rank"], found["ranks"]["tally"]) == ([], {"running": world})
    assert (len(found["groups"]), found["group_count"]) == (MAX_GROUPS, 8 + world // 8 + 8)
    assert found["waiting"] == []
    assert len(gzip.compress(json.dumps(found).encode(), 3)) < 8_000


@pytest.mark.parametrize("world", SIZES)
def test_in_a_hang_the_host_of_the_culprit_stands_alone(stage: Stage, world: int) -> None:
    run = stage.job(world)
    number = stage.hang(run, 717)["id"]
    found = ask(stage, run)
    assert (found["state"], found["incidents"]) == ("incident", [number])
    assert hosts(found) == [
        ("node-89", "node-89", {"culprit": 1, "waiting": 7}),
        ("node-0", "node-88", {"waiting": 712}),
        ("node-90", f"node-{world // 8 - 1}", {"waiting": world - 720}),
    ]
    ranks = found["ranks"]
    assert (ranks["rank"], ranks["host"], ranks["site"]) == ([717], ["node-89"], ["/job/data.py:17 load"])
    (wait,) = found["waiting"]
    assert (wait["operation"], wait["sequence_id"], wait["count"]) == ("all_reduce", 101, world - 1)
    assert wait["ranks"] == f"0-716,718-{world - 1}"
    world_group = found["groups"][wait["group"] or 0]
    assert (world_group["description"], world_group["enqueued"]) == ("default_pg", [100, 101])
    assert (world_group["behind"], world_group["behind_count"]) == ("717", 1)
    lanes = {lane["name"]: lane for lane in found["lanes"]}
    assert lanes["default_pg"]["enqueued"] == [100]
    assert [found["groups"][at or 0]["ranks"] for at in lanes["tp"]["group"]] == ["712-719"]
    assert len(gzip.compress(json.dumps(found).encode(), 3)) < 8_000


def test_ranks_that_say_only_that_they_wait_are_shown_where_their_counts_are(stage: Stage) -> None:
    """Ranks other than a group's witnesses report no calls (`otel_fr.monitor.witness`)."""
    run = stage.job(2_048)
    stage.hang(run, 717)

    async def leave_out() -> None:
        for rank, state in run.ranks.items():
            if rank != 717 and state.report is not None and rank >= 8:
                state.report, state.contents = structs.replace(state.report, unlisted_s=7.5), NOTHING
                del run.waiting[rank]
        world = next(one for one in run.groups.values() if one.group.description == "default_pg")
        for rank in range(8):
            world.add(run.ranks[rank].contents.inflight[0])

    stage.do(leave_out())
    found = ask(stage, run, 1_000)
    assert hosts(found)[0] == ("node-89", "node-89", {"culprit": 1, "waiting": 7})
    (wait,) = found["waiting"]
    assert (wait["operation"], wait["sequence_id"], wait["count"]) == ("all_reduce", 101, 2_047)
    assert found["ranks"]["rank"] == [717, 1_000]
    assert [one and list(one[:2]) for one in found["ranks"]["waits"]] == [None, ["all_reduce", 101]]


def test_the_brief_form_of_an_incident_has_the_culprits_and_who_waits_as_text(stage: Stage) -> None:
    run = stage.job(4_096)
    path = f"{stage.url}/api/v1/incidents/{stage.hang(run, 717, with_consequence=True)['id']}"
    with urlopen(path, timeout=PATIENCE) as answer, urlopen(f"{path}?view=brief", timeout=PATIENCE) as short:
        whole, body = json.load(answer), short.read()
    brief = json.loads(body)
    assert len(body) < 4_000
    assert brief["waiting"] == "0-716,718-4095"
    assert decode_ranks(brief["waiting"]) == whole["waiting_ranks"]
    assert brief["call_sites"] == {"717": "/job/data.py:17 load"}
    for key in ("stacks", "culprits", "links", "consequences", "waiting_count", "job_url"):
        assert brief[key] == whole[key]
    assert not {"waiting_ranks", "stack_groups", "values"} & brief.keys()


def test_ranks_that_are_dead_behind_or_never_came_are_listed(stage: Stage) -> None:
    run = stage.job(2_048)
    stage.hang(run, 5)
    run.world_size = 2_050
    kill(stage, run, *range(80, 96))
    found = ask(stage, run)
    assert hosts(found) == [
        ("node-0", "node-0", {"culprit": 1, "waiting": 7}),
        ("node-10", "node-11", {"killed": 16}),
        ("", "", {"unheard": 2}),
        ("node-1", "node-9", {"waiting": 72}),
        ("node-12", "node-255", {"waiting": 1_952}),
    ]
    assert found["ranks"]["rank"] == [5, *range(80, 96), 2_048, 2_049]
    assert found["ranks"]["tally"] == {"running": 2_032, "killed": 16, "unheard": 2}
    assert found["ranks"]["how"][1] == "signal 9 (SIGKILL)"
    stage.recover(run)  # nobody is blamed any more, but the others still wait for the rank
    assert hosts(ask(stage, run))[1] == ("node-0", "node-0", {"behind": 1, "waiting": 7})


def test_hosts_and_ranks_that_differ_are_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_map, "MAX_RANGES", 16)
    run = stage.job(8_192)
    kill(stage, run, *range(3, 8_192, 16))
    found = ask(stage, run)
    assert len(found["nodes"]) == 16
    assert sum(one["hosts"] for one in found["nodes"]) == 1_024
    rest = found["nodes"][-1]
    assert rest["states"] == {"killed": 512 - 15, "running": 8_192 - 512 - 15 * 7}
    assert sorted(rank for one in found["nodes"] for rank in decode_ranks(one["ranks"])) == list(range(8_192))
    assert found["ranks"]["rank"] == [*range(3, 8_192, 16)][: node_map.MAX_LISTED]
    assert found["ranks"]["tally"] == {"running": 7_680, "killed": 512}


def test_ranks_that_are_asked_for_are_listed_too(stage: Stage) -> None:
    run = stage.job(2_048)
    kill(stage, run, 1_000)
    url = f"{stage.url}/api/v1/jobs/{stage.key(run)}?ranks="
    with urlopen(Request(url + "8-15,2000,999999"), timeout=PATIENCE) as answer:
        found = json.load(answer)
    assert found["ranks"]["rank"] == [*range(8, 16), 1_000, 2_000]
    assert found["ranks"]["host"][:2] == ["node-1", "node-1"]
    assert len(found["lanes"][0]["enqueued"]) == 10
    assert found["nodes"]
    for bad in ("x", "5-", "1-3:0", f"0-{MAX_WHOLE}", "0-99999999999", "9," * 1_024 + "9", "9" * 9_000):
        with pytest.raises(HTTPError) as refused:
            urlopen(url + bad, timeout=PATIENCE)
        assert refused.value.code == 400
        assert "ranks" in json.load(refused.value)["error"]


def test_a_small_job_lists_all_ranks(stage: Stage) -> None:
    found = ask(stage, stage.job(MAX_WHOLE), 5)
    assert found["ranks"]["rank"] == list(range(MAX_WHOLE))
    assert (found["nodes"], len(found["groups"])) == ([], 8 + 128 + 8)


def test_it_is_put_together_in_pieces(stage: Stage) -> None:
    """Other work in the event loop gets its turn between pieces of ranks and of groups."""
    run = stage.job(12_288)
    stage.hang(run, 717)

    async def count() -> dict[str, int]:
        turns: dict[str, int] = {}
        for name, work in (
            ("job", job_answer(run, stage.service.book, 0.0, 0.0)),
            ("list", summary(run, stage.service.book, 0.0, 0.0)),
        ):
            task = asyncio.ensure_future(work)
            turns[name] = 0
            while not task.done():
                turns[name] += 1
                await asyncio.sleep(0)
        return turns

    turns = stage.do(count())
    assert turns["list"] >= 2
    assert turns["job"] >= 10


def test_on_the_page_equal_hosts_share_a_row_that_opens(stage: Stage, page: Any) -> None:
    expect = expectation()
    run = stage.job(4_096)
    page.goto(f"{stage.url}/#/jobs/{stage.key(run)}")
    rows, cells = page.locator("#ranges button"), page.locator("#nodes [role=gridcell]")
    expect(rows).to_have_text(["node-0 to node-511512 hosts: 4,096 running"])
    expect(page.locator("#tally")).to_have_text("4,096 running")
    stage.hang(run, 2_717)
    expect(rows).to_have_text(
        ["node-3391 culprit, 7 waiting", "node-0 to node-338339 hosts: 2,712 waiting",
         "node-340 to node-511172 hosts: 1,376 waiting"]
    )  # fmt: skip
    expect(page.locator("#differ")).to_have_text("512 hosts; ranks differ on node-339")
    expect(page.locator("#tally")).to_have_text("1 culprit4,095 waiting")
    expect(page.locator("#grid tbody tr")).to_have_count(1)
    expect(page.locator("#grid tr[data-rank='2717']")).to_contain_text("load data.py:17")
    expect(cells.first).to_be_hidden()
    page.keyboard.press("m")
    page.keyboard.press("Enter")
    expect(cells).to_have_count(8)
    expect(page.get_by_role("gridcell", name="rank 2717: culprit")).to_have_class("sw-culprit")
    page.get_by_role("gridcell", name="rank 2716: waiting").click()
    expect(page.locator("#grid tr.picked")).to_contain_text("in all_reduce number 101 for")
    rows.nth(1).click()
    expect(page.locator("#opened")).to_have_text("node-0 to node-338: 1 to 512 of 2,712 ranks")
    expect(cells).to_have_count(512)
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_role("gridcell", name="rank 512: waiting")).to_be_visible()
    expect(cells).to_have_count(512)
    close = page.get_by_role("button", name="Close")
    close.click()
    expect(cells.first).to_be_hidden()
    expect(close).to_be_hidden()
    expect(page.locator("#grid tr.picked")).to_have_count(1)
