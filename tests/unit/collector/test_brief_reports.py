"""Reports with counts only in the collector: the short way leads where the general one does; gaps are asked about."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otel_fr_collector.jobs import run as run_module
from otel_fr_collector.jobs.calls import Interner, RankCall
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.same_reports import says_the_same
from otel_fr_collector.jobs.snapshot import snapshot

from otel_fr.match import Ending
from otel_fr.match.model import MessagePattern
from otel_fr.rank_report import parse
from otel_fr.stacks import Loop
from tests.support.told import new_run

GROUPS = {
    "a1": {"name": "0", "desc": "default_pg", "ranks": "0-3", "backend": "gloo"},
    "b2": {"name": "1", "desc": "tp", "ranks": "0-1", "backend": "gloo"},
}
CALL = {
    "g": "a1", "k": "collective", "seq": 6, "op_id": 6, "rec": 9, "i": 0, "op": "all_reduce", "be": "gloo",
    "in": [[3]], "idt": ["Float"], "out": [[3]], "odt": ["Float"], "isp": None, "osp": None, "ro": "sum",
    "root": None, "peer": None, "tag": None, "st": "scheduled", "timeout_ms": 600_000, "age_s": 0.1, "site": "t.py:1 f",
}  # fmt: skip


def body(
    number: int, *, brief: bool = True, enqueued: int = 5, groups: tuple[str, ...] = ("a1", "b2"), **more: Any
) -> str:
    """A report of rank 1."""
    counts = {"enq": enqueued, "done": enqueued, "p2p": 2, "issued": 2 * enqueued, "ended": enqueued, "gone": False}
    own = [{"id": id_, **({} if brief else GROUPS[id_]), **counts} for id_ in groups]
    found = {"v": 1, "rank": 1, "n": number, "stall_s": 5.0, "groups": own, "inflight": [], "inflight_more": 0}
    found |= {"failed": [], "idle_s": 0.25, "creations": True, "here": "0-3", **more}
    return json.dumps(found | {"brief": True} if brief else found, separators=(",", ":"))


def take(run: Run, text: str, now: float) -> int | None:
    return run.apply(parse(text), Interner(), now=now, wall=now)


def is_same(run: Run, text: str, now: float) -> bool:
    """The report says what the rank's latest has said, but for counts and times."""
    return says_the_same(run.ranks[1], parse(text), now)


def undated(call: Any) -> Any:
    """Calls without when they were enqueued: a report that says the same again does not date them anew."""
    if isinstance(call, (list, tuple)) and not isinstance(call, RankCall):
        return [undated(one) for one in call]
    return call and call._replace(enqueued_at=call.enqueued_at is not None, enqueued_wall=None)


def state_of(run: Run) -> dict[str, Any]:
    """All that is known, without what only says by which way the last report came."""
    known: dict[str, Any] = {"run": (run.last_seen, run.to_ask, dataclasses.asdict(run.usage), run.mismatch_since)}
    for rank, state in run.ranks.items():
        own = {item.name: getattr(state, item.name) for item in dataclasses.fields(state)}
        own["contents"] = own["contents"]._replace(
            inflight=undated(state.contents.inflight), last=undated(state.contents.last)
        )
        own |= {key: dataclasses.asdict(own[key]) for key in ("own_time", "delay")}
        del own["completed_at"]  # of a call that continues, or ended long ago, the first report's date is kept
        known[str(rank)] = own
    for id_, group in run.groups.items():
        known[id_] = (group.group, group.size, group.call_count, group.weight)
    known["step"] = run.steps.per_second(1e9), run.steps.per_second(run.last_seen)
    return known


values = st.fixed_dictionaries(
    {"enqueued": st.integers(0, 2**62 - 1), "idle_s": st.floats(0, 9)},
    optional={
        "brief": st.booleans(),
        "step": st.none() | st.integers(-3, 10**6),
        "step_s": st.floats(0, 5),
        "groups": st.sampled_from([("a1", "b2"), ("a1",), ("b2", "a1"), ()]),
        "here": st.sampled_from(["0-3", "", "1-2"]),
        "stall_s": st.sampled_from([5.0, 2.5]),
        "peer_s": st.sampled_from([5.0, 9.0]),
        "creations": st.booleans(),
        "every_s": st.sampled_from([1.0, 2.5, 60.0]),
        "inflight": st.sampled_from(
            [[], [CALL], [CALL | {"rec": 10, "age_s": 3.0}], [CALL | {"posted": True}], [CALL | {"queued": True}]]
        ),
        "inflight_more": st.integers(0, 2),
        "failed": st.sampled_from([[], [CALL | {"st": "failed", "err": "timeout"}]]),
        "last": st.sampled_from([CALL | {"st": "completed"}]),
        "site": st.sampled_from(["a.py:1 f"]),
        "stack": st.sampled_from(["Thread MainThread"]),
        "python_blocked": st.booleans(),
        "exit": st.just({"code": 0, "signal": 0, "clean": True, "known": True}),
        "dropped": st.just({"spans": 0, "reports": 0, "records": 0, "hook_errors": 1}),
        "activity": st.just([{"kind": "heartbeat", "age_s": 9.0, "limit_s": 5.0, "overdue": True}]),
        "key_of_a_later_release": st.integers(),
    },
)


@given(st.lists(values, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_short_way_leads_to_the_same_state_in_any_order_with_losses_and_duplicates(
    reports: list[dict[str, Any]], rng: Any
) -> None:
    reports = [report for report in reports for _ in range(rng.choice([1, 1, 2, 3]))]
    texts = [body(number, **report) for number, report in enumerate(reports)]
    sent = [text for text in texts for _ in range(rng.choice([0, 1, 1, 1, 2]))]
    if rng.random() < 0.5:
        rng.shuffle(sent)
    short, general = new_run(world_size=4), new_run(world_size=4)
    for now, text in enumerate(sent):
        taken = take(short, text, float(now))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_module, "says_the_same", lambda *_: False)
            assert (take(general, text, float(now)) is None) == (taken is None)
        assert state_of(short) == state_of(general)


def test_a_brief_report_after_the_first_takes_the_short_way() -> None:
    run = new_run(world_size=4)
    assert take(run, body(1, brief=False), 1.0) is not None
    assert take(run, body(2, enqueued=6), 2.0) is not None
    assert take(run, body(3, enqueued=7, step=4), 3.0) == 0
    assert take(run, body(3, enqueued=7, step=4), 3.0) is None, "a duplicate"
    state = run.ranks[1]
    assert (state.progress["a1"][:5], state.arrived) == ([7, 7, 3, 2, 7], 3.0)
    assert run.to_ask == set()


LINES = {"g": "a1", "first": 4, "calls": "01", "places": [["a.py:1 f"], ["a.py:2 f", "a.py:9 g"]]}
LOOP = {"file": "a.py", "first": 3, "last": 7, "function": "f"}


def waiting(number: int, now: float, enqueued: int = 6, **more: Any) -> str:
    """A full report at ``now`` of a rank that waits in a call since 10."""
    call = CALL | {"age_s": now - 10.0}
    said: dict[str, Any] = {"last": CALL | {"rec": 8, "seq": 5, "st": "completed"}, "idle_s": now - 10.0, **more}
    return body(number, brief=False, enqueued=enqueued, inflight=[call], **said)


def test_a_rank_that_still_waits_takes_the_short_way_until_anything_else_is_said() -> None:
    run = new_run(world_size=4)
    assert take(run, waiting(1, 13.0), 13.0) is not None
    assert take(run, waiting(2, 14.0), 14.0) == 0
    state = run.ranks[1]
    assert state.report is not None
    assert (state.arrived, state.report.number, state.report.idle_s) == (14.0, 2, 4.0)
    assert [call.as_call(15.0).age for call in state.contents.inflight] == [5.0], "since it was enqueued"
    assert take(run, waiting(2, 14.0), 14.0) is None, "a duplicate"
    assert is_same(run, waiting(3, 15.0), 15.0)
    others: list[dict[str, Any]] = [
        {"inflight_more": 1}, {"site": "a.py:1 f"}, {"doing": "reading"}, {"unreached": ["10.0.0.1:1"]},
        {"round_trips": [{"to": "10.0.0.1", "s": 0.4}]},
        {"addresses": ["10.0.0.2"]}, {"python_blocked": True}, {"file": "/f"},
        {"stack": "Thread"}, {"exiting": True}, {"failed": [CALL | {"st": "failed", "err": "timeout"}]},
        {"last": CALL | {"rec": 9, "st": "completed"}}, {"inflight": []}, {"inflight": [CALL | {"rec": 10}]},
        {"inflight": [CALL | {"age_s": 9.0}]}, {"inflight": [CALL | {"posted": True}]}, {"stall_s": 2.0},
        {"exit": {"code": 0, "signal": 0, "clean": True, "known": True}}, {"exception": {"type": "OSError"}},
        {"dropped": {"spans": 0, "reports": 0, "records": 0, "hook_errors": 1}}, {"on_hang": "kill"},
        {"activity": [{"kind": "heartbeat", "age_s": 9.0, "limit_s": 5.0, "overdue": True}]},
        {"decisions": [{"name": "n", "value": "v", "digest": 1, "first": 1, "last": 1}]},
        {"lines": [LINES]}, {"left": [LOOP]},
        {"patterns": [{"g": "a1", "src": 1, "dst": 2}]},
    ]  # fmt: skip
    for other in others:
        text = json.loads(waiting(3, 15.0)) | other
        assert not is_same(run, json.dumps(text), 15.0), other


def test_patterns_stay_until_the_rank_moves_and_are_said_again_at_no_cost() -> None:
    run = new_run(world_size=4)
    said = [{"g": "a1", "src": 1, "dst": 2, "step": "a1"}, {"g": "a1", "src": 2, "dst": 1, "tag": 3}]
    assert take(run, waiting(1, 14.0, patterns=said), 14.0) is not None
    assert take(run, waiting(2, 15.0, patterns=said), 15.0) == 0
    expected = (MessagePattern("a1", 1, 2, 0, "a1"), MessagePattern("a1", 2, 1, 3))
    assert snapshot(run, 15.0).evidence().ranks[1].patterns == expected
    assert take(run, waiting(3, 16.0), 16.0) is not None, "as of a rank that is no witness"
    assert take(run, waiting(4, 17.0), 17.0) == 0
    assert snapshot(run, 17.0).evidence().ranks[1].patterns == expected
    assert take(run, waiting(5, 17.5, 7), 17.5) is not None
    assert snapshot(run, 17.5).evidence().ranks[1].patterns == ()


@pytest.mark.parametrize(("waits_at", "moved_at"), [((15.0, 16.0), 17.0), ((), 14.2)], ids=["it waits", "at once"])
def test_a_stack_goes_with_the_first_report_of_a_rank_that_moves_and_stays_while_it_waits(
    waits_at: tuple[float, ...], moved_at: float
) -> None:
    run = new_run(world_size=4)
    told: dict[str, Any] = {"site": "a.py:1 f", "left": [LOOP]}
    assert take(run, waiting(1, 14.0, stack="Thread MainThread", lines=[LINES], **told), 14.0) is not None
    for number, now in enumerate(waits_at, 2):
        assert take(run, waiting(number, now, **told), now) is not None
    known = snapshot(run, 17.0).ranks[1]
    assert (known.stack, known.site) == ("Thread MainThread", "a.py:1 f")
    assert known.lines[0].by_number() == {4: ("a.py:1 f",), 5: ("a.py:2 f", "a.py:9 g")}
    assert known.left_loops == (Loop("a.py", 3, 7, "f"),)
    assert take(run, waiting(9, moved_at, 7, site="", idle_s=0.1), moved_at) is not None
    known = snapshot(run, 17.0).ranks[1]
    assert (known.stack, known.site, known.lines, known.left_loops) == ("", "", (), ())


def test_lines_that_come_without_a_stack_stay_when_the_rank_has_ended() -> None:
    run = new_run(world_size=4)
    end = {"code": 0, "signal": 0, "clean": True, "known": True}
    assert take(run, body(1, brief=False, exit=end, lines=[LINES]), 14.0) is not None
    assert take(run, body(2, brief=False, file="/f"), 14.5) is not None
    assert snapshot(run, 17.0).ranks[1].lines[0].first == 4


def test_a_rank_is_silent_only_once_the_report_that_it_announced_is_late() -> None:
    run = new_run(world_size=4)
    assert take(run, body(1, brief=False, every_s=2.5), 10.0) is not None
    state = run.ranks[1]
    assert [state.is_silent(now) for now in (13.9, 14.1)] == [False, True]
    assert take(run, body(2), 12.5) is not None
    assert take(run, body(3), 13.5) is not None
    assert [state.is_silent(now) for now in (15.9, 16.1)] == [False, True], "each second again"
    assert take(run, body(4, every_s=5), 14.0) is not None
    taken = snapshot(run, 20.4)
    assert (taken.ranks[1].ending, taken.until[1]) == (Ending.RUNNING, 20.4)
    taken = snapshot(run, 20.6)
    assert (taken.ranks[1].ending, taken.until[1]) == (Ending.UNKNOWN, 20.5)


def test_a_rank_that_moves_is_not_idle_because_its_next_report_is_not_due_yet() -> None:
    """As before its reports became seldom: at most 1.5 s late and its own interval of 1 s."""
    for interval in (1.0, 2.5):
        run = new_run(world_size=4)
        assert take(run, body(1, brief=False), 0.0) is not None
        assert take(run, body(2, every_s=interval, idle_s=0.1), 10.0) is not None
        idle = [snapshot(run, 10.0 + after + interval).ranks[1].idle for after in (0.0, 1.4, 9.0)]
        assert idle == pytest.approx([1.1, 2.5, 2.6])
        assert take(run, body(3, every_s=interval, brief=False, idle_s=3.0), 20.0) is not None
        assert snapshot(run, 20.0 + interval).ranks[1].idle == pytest.approx(3.0 + interval), "it stands still"


def test_a_rank_without_a_processor_has_none_since_its_latest_report_either() -> None:
    run = new_run(world_size=4)
    assert take(run, waiting(1, 14.0, starved_s=3.0), 14.0) is not None
    known = snapshot(run, 15.0).ranks[1]
    assert known.idle == 5.0
    assert known.starved == pytest.approx(3.75)


def test_a_collector_that_restarted_asks_the_rank_and_takes_its_counts_meanwhile() -> None:
    run = new_run(world_size=4)
    assert take(run, body(8, enqueued=7), 1.0) is not None
    assert (run.to_ask, run.groups["a1"].group.ranks, run.ranks[1].progress["a1"][:2]) == ({1}, (), [7, 7])
    run.to_ask.clear()
    assert take(run, body(9, enqueued=8), 2.0) is not None
    assert run.to_ask == {1}, "the command may have been lost"
    run.to_ask.clear()
    assert take(run, body(10, brief=False, enqueued=9), 3.0) is not None
    assert (run.groups["a1"].group.ranks, run.groups["b2"].group.description) == ((0, 1, 2, 3), "tp")
    assert take(run, body(11, enqueued=9), 4.0) is not None
    assert run.to_ask == set()
