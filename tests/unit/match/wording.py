"""Examples of each rule, and what users read of them: the category, the sentences, and whom the verdict names.

``python -m tests.unit.match.wording`` writes them to ``tests/fixtures/wording``, one file for each category, and
`tests.unit.match.test_wording` compares. What an example shows needs no other test. The other tests look at fields:
they stay when a sentence changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from signal import SIGABRT, SIGKILL, SIGTERM
from typing import Any

from otel_fr_collector.incidents.what_to_do import WHAT_TO_DO

from otel_fr.match import (
    CallState,
    Category,
    Decision,
    Ending,
    Finding,
    Group,
    Overdue,
    Place,
    Progress,
    Rank,
    Signature,
    ThreadException,
    diagnose,
)
from otel_fr.stacks import Loop
from tests.support import mesh_model
from tests.support.device_model import Machine
from tests.support.evidence import (
    BARRIER,
    BROADCAST,
    LARGE,
    MAX,
    SUM,
    call,
    judge,
    message,
    rank,
    verdict,
    world,
)
from tests.support.verdicts import causes
from tests.unit.collector.test_slowness import Job
from tests.unit.match.rare_rules import rare
from tests.unit.match.test_device_sync import PAIRS, SYNC, in_line, in_sync
from tests.unit.match.test_new_groups import made
from tests.unit.match.test_out_of_step import two_by_two

Cases = Iterator[tuple[str, list[Finding]]]

FOLDER = Path(__file__).parents[2] / "fixtures" / "wording"

DONE, FAILED, UNKNOWN = CallState.COMPLETED, CallState.FAILED, CallState.UNKNOWN
ABORTED: dict[str, Any] = {"ending": Ending.KILLED, "signal": SIGABRT}
KILLED: dict[str, Any] = {"ending": Ending.KILLED, "signal": SIGKILL}
STOPPED: dict[str, Any] = {"ending": Ending.KILLED, "signal": SIGTERM}
TIMED_OUT: dict[str, Any] = {"ending": Ending.RAISED, "exception": "RuntimeError: Timed out"}
UNHEARD: dict[str, Any] = {"ending": Ending.UNKNOWN, "complete": False}
GAVE_UP: dict[str, Any] = {"state": FAILED, "age": None, "duration": 6.0, "error": "timeout"}
TP, PAIR, PP = Group("t", "3", "tp", (1, 2)), Group("p", "1", "pair", (0, 1)), Group("pp", "4", "pp", (0, 1, 2))
SITE = "train.py:9 load"


def without_rank_1(*calls: Any, peers: dict[str, Any] | None = None, **of_rank_1: Any) -> list[Finding]:
    """Ranks 0 and 2 wait in all_reduce number 5, and rank 1 has not joined it."""
    waiting = [rank(r, 5, **(peers or {})) for r in (0, 2)]
    return verdict([call(0), call(2), *calls], [*waiting, rank(1, 4, **{"site": SITE, **of_rank_1})], TP, PAIR, PP)


def missing() -> Cases:
    yield "in no call", without_rank_1()
    places = {0: Place("gpu-16", 1, 0), 1: Place("gpu-17", 2, 0), 2: Place("gpu-17", 3, 1)}
    on_machines = [rank(r, 5 if r != 1 else 4, place=place) for r, place in places.items()]
    yield "its machine is known", verdict([call(0), call(2)], on_machines)
    thread = ThreadException("prefetch", "ValueError: bad sample 4711", "loader.py:8 read")
    elsewhere = {"thread_exceptions": (ThreadException("metrics", "OSError: no route"),)}
    yield "another of its threads has raised", without_rank_1(peers=elsewhere, thread_exceptions=(thread,))
    yield "its last call was in another group", without_rank_1(call(1, 25, DONE, group=TP), counts={"t": (25, 25)})
    ranks = [rank(0, 58), rank(1, 50, site=SITE), rank(2, 58)]
    yield "it is several calls behind", verdict([call(0, 58), call(1, 50, DONE), call(2, 58)], ranks)
    yield "its kernel says what it does", without_rank_1(doing="reading a pipe")
    fetch = "_MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:54)"
    frames = "\n    ".join(["Thread 7 (idle)", "read (s3.py:8)", "Shards.__getitem__ (data.py:31)", fetch])
    workers = f"Native stacks, by py-spy:\nThread 6 (idle)\n\nDataLoader worker, process 7, sleeping:\n{frames}"
    yield "one of its DataLoader workers hangs", without_rank_1(doing="reading a pipe", stack=workers)
    left = (Loop("train.py", 38, 44, "main", is_nested=True),)
    yield "it has left their loop", without_rank_1(peers={"site": "train.py:40 main"}, left_loops=left)
    clean: dict[str, Any] = {"ending": Ending.CLEAN, "exit_code": 0, "site": ""}
    yield "it has ended without an error", without_rank_1(**clean)
    yield "nothing is known of it", verdict([call(0), call(2)], [rank(0, 5), Rank(1, **UNHEARD), rank(2, 5)])
    unheard = [Rank(r, **UNHEARD) for r in (1, 2)]
    yield "nothing is known of several", verdict([call(0)], [rank(0, 5), *unheard])
    no_room = [Rank(r, has_gaps=True, **UNHEARD) for r in (1, 2)]
    yield "its recording has gaps", without_rank_1(has_gaps=True)
    yield "the collector has no room for the others", verdict([call(0)], [rank(0, 5), *no_room])
    yield "and the recording of one has gaps", verdict([call(0)], [rank(0, 5), Rank(1, has_gaps=True), no_room[1]])
    yield "only one rank has joined", verdict([call(0)], [rank(0, 5), rank(1, 4), rank(2, 4)])
    exiting: dict[str, Any] = {"exiting": True, "exit_message": "no samples", "site": "log.py:7 close"}
    yield "it is exiting", without_rank_1(**exiting)
    failed = [call(r, state=FAILED, duration=0.01) for r in (0, 2)]
    ended = [rank(r, 5, **TIMED_OUT) for r in (0, 2)]
    yield "it was exiting", verdict(failed, [*ended, rank(1, 4, **exiting, **STOPPED)])
    progress = {"w": Progress(4, 4, destroyed=True, destroyed_at="save.py:9 close")}
    yield "it has destroyed the group", without_rank_1(progress=progress, site="save.py:3 save")
    pair = [
        rank(0, counts={"p": (6, 5)}),
        Rank(1, idle=9.0, progress={**progress, "p": Progress(5, 5, destroyed=True)}),
    ]
    yield "it has destroyed all groups", verdict([call(0, 6, group=PAIR)], pair, PAIR)
    destroy = Signature("destroy_process_group")
    destroying = call(1, 1, signature=destroy, stream="group", record=9, site="save.py:9 close")
    yield "it destroys the group", without_rank_1(destroying, site="save.py:9 close")
    yield "it waits for any sender", without_rank_1(message(1, "recv", None, group=PP))
    stage = [message(0, "send", 1, group=PP, pair_index=1), message(2, "recv", 1, group=PP)]
    stage += [message(1, "recv", 0, state=DONE, group=PP, record=99)]
    yield "a stage of a pipeline", verdict(stage, [rank(0), rank(1, site=SITE), rank(2)], PP)
    ranks = [rank(0, counts={"a": (7, 6), "b": (6, 6)}), rank(1, counts={"a": (6, 6), "b": (7, 6)}, stack=SYNC)]
    calls = [call(0, 7, group="a"), call(1, 7, group="b", queued=True)]
    yield "its thread waits for its device", judge(calls, ranks, PAIRS, 2)
    counted = [rank(r, 7, 6) for r in (1, 2)] + [rank(0, 6)]
    posted = message(1, "recv", 2, age=0.0, record=6)
    yield "it has posted a receive", without_rank_1(posted, counts={"pp": (0, 0)})
    yield "it has completed all that it enqueued", verdict([call(1, 7), call(2, 7)], counted)


def missing_and_ended() -> Cases:
    ended = [rank(r, 5, **TIMED_OUT) for r in (0, 2)]
    gave_up = "torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//1//cpu//0/2"
    ranks = [rank(r, 2, ending=Ending.RAISED, exception=gave_up) for r in (0, 1)]
    yield "others waited for it to make a group", verdict([], [*ranks, rank(2, 2, site=SITE)])
    yield "a watchdog has aborted those that waited", without_rank_1(peers=ABORTED, **STOPPED)
    aborted: dict[str, Any] = {
        "ending": Ending.RAISED,
        "exception": "DistBackendError: NCCL communicator was aborted on rank 0.",
    }
    yield "NCCL has ended those that waited", without_rank_1(peers=aborted)
    yield "those that waited have exited", without_rank_1(peers={"ending": Ending.RAISED, "exit_code": 1})
    timed_out = [call(r, **GAVE_UP) for r in (0, 2)]
    yield "it was stopped after the others gave up", verdict(timed_out, [*ended, rank(1, 4, site=SITE, **STOPPED)])
    exits = rank(1, 4, idle=6.4, ending=Ending.CLEAN, exiting=True, site=SITE)
    yield "it ended after the others gave up", verdict(timed_out, [*ended, exits])
    decisions = [Decision("skip_batch", "False", 1, 1, 812, 0), Decision("skip_batch", "True", 2, 813, 813, 812)]
    peer = Decision("skip_batch", "False", 1, 1, 820, 0)
    yield "it decided otherwise", without_rank_1(peers={"decisions": (peer,)}, decisions=tuple(decisions))
    overdue = [rank(1, 4, overdue=(LOADING,)), rank(2, 4)]
    yield "one of two is in a section for too long", verdict([call(0)], [rank(0, 5), *overdue])


def missing_in_step() -> Cases:
    four = world(4)
    rest = [rank(r, 0, site=SITE) for r in range(4)]
    yield "it did not make a group", verdict([made(r, 2) for r in (0, 1, 3)], rest, size=4)
    went_on = [*(made(r, 2) for r in (0, 1, 3)), call(2, 1, record=50)]
    yield "it went on without making a group", verdict(went_on, [*rest[:2], rank(2, 1), rest[3]], size=4)
    older = [*rest[:2], rank(2, 0, records_creations=False), rest[3]]
    failed = [made(r, 2, state=FAILED, age=30.0, duration=30.0, error="timeout") for r in (0, 1, 3)]
    yield "it does not record the making of groups", judge(failed, older, [four], 4)
    for fault, more in {"short": {3: -1}, "long": {3: 1}, "replica short": {2: -1, 3: -1}}.items():
        ranks, program = two_by_two()
        rng = random.Random(1)
        machine = mesh_model.run(rng, ranks, program, more)
        yield f"a step {fault}", diagnose(machine.evidence())
    ranks, program = two_by_two()
    rng = random.Random(1)
    machine = mesh_model.run(rng, ranks, program, {})
    machine.programs[3].append(machine.programs[3][0])
    machine.run(rng)
    yield "the others have ended", diagnose(machine.evidence())
    own, pair = Group("o", "2", "own", (0, 1)), Group("p", "1", "pair", (2, 3))
    calls = [call(0, 9, signature=BARRIER, group=own, record=20), call(2, 9, signature=BARRIER, group=pair, record=20)]
    infos = [rank(0, 1, counts={"o": (9, 8)}), rank(1, 1, counts={"o": (8, 8)}, complete=False)]
    infos += [rank(2, 1, counts={"p": (9, 8)}), rank(3, 2, counts={"p": (8, 8)})]
    yield "of two that cannot be compared", verdict([*calls, call(3, 2, record=20)], infos, own, pair, size=4)
    shards = [Group(f"s{i}", str(i + 1), "shard", tuple(range(3 * i, 3 * i + 3))) for i in (0, 1)]
    calls, infos = [], []
    for number in range(6):
        shard = shards[number // 3].id
        order = [(shard, 49), ("w", 8)] if number == 5 else [("w", 8)] if number == 4 else [("w", 8), (shard, 49)]
        calls += [call(number, seq, group=group, record=80 + at, age=None) for at, (group, seq) in enumerate(order)]
        infos.append(rank(number, counts={shard: (48 + (number != 4), 48), "w": (8, 7)}, idle=None))
    yield "it left a call out and others wait beside it", verdict(calls, infos, *shards, size=6)


def dead() -> Cases:
    yield "killed", without_rank_1(**KILLED)
    yield "killed for its memory", without_rank_1(**KILLED, kill_reason="out of memory (cgroup limit 4.0 GiB)")
    raised: dict[str, Any] = {"ending": Ending.RAISED, "exit_code": 1, "exception_site": "train.py:4 main"}
    yield "raised", without_rank_1(**raised, exception="ValueError: bad sample 4711")
    yield "exited with a message", without_rank_1(**raised, exit_message="no samples")
    yield "stopped long before its peers ended", without_rank_1(call(1, 4, DONE), **STOPPED, idle=0.2)
    last = [rank(0, 5), rank(1, 4, site=SITE), rank(2, 5, **KILLED)]
    yield "another rank had not joined either", verdict([call(0), call(2)], last)
    wrong: dict[str, Any] = {
        "ending": Ending.RAISED,
        "exception": "KeyError: 'lr'",
        "exception_site": "train.py:8 main",
    }
    many = [rank(r, 9, **wrong) for r in range(62)] + [rank(r, 9, ending=Ending.KILLED, signal=11) for r in (62, 63)]
    yield "many alike", verdict([], many, size=64)
    illegal = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nSearch for ..."
    ranks = [rank(r, 5) for r in (0, 2)] + [rank(1, 5, ending=Ending.RAISED, exception=illegal, idle=None)]
    yield "an error of its device", verdict([call(r) for r in range(3)], ranks)
    yield "it raised in a section", without_rank_1(**raised, exception="ValueError: bad sample", overdue=(LOADING,))


def stuck() -> Cases:
    yield "its Python threads do not run", without_rank_1(call(1, 4, DONE), python_blocked=True)
    stopped = "stopped by a signal (SIGSTOP)"
    yield "it is stopped", without_rank_1(python_blocked=True, doing=stopped)
    ranks = [rank(0, 5), rank(1, 5, python_blocked=True, doing=stopped), rank(2, 5)]
    yield "it is stopped in a call that all joined", verdict([call(r) for r in range(3)], ranks)
    yield "in a section", without_rank_1(python_blocked=True, overdue=(LOADING,))
    four = [rank(r, 7, 6) for r in range(4)]
    calls = [call(r, 7) for r in range(3)] + [call(3, 7, queued=True)]
    yield "its device has not begun the call", verdict(calls, four, size=4)
    behind = [call(1, 5), *(call(r, 6) for r in range(3))]
    yield "its device does not complete a call", verdict(behind, [rank(0, 6, 5), rank(1, 6, 4), rank(2, 6, 5)])
    halted = rank(1, 6, 4, python_blocked=True, doing=stopped)
    yield "it is stopped in a call that others completed", verdict(behind, [rank(0, 6, 5), halted, rank(2, 6, 5)])
    both = [call(1, 5), call(1, 5, group=TP, record=6), call(0, 6), call(2, 6)]
    ranks = [rank(0, 6), rank(1, 5, counts={"t": (5, 4)}), rank(2, 6, counts={"t": (5, 5)})]
    yield "its device does not complete calls of two groups", verdict(both, ranks, TP)


def overdue() -> Cases:
    for name, item in {"section": LOADING, "heartbeat": BEAT, "outside": OUTSIDE}.items():
        yield f"{name}: others wait for the rank", without_rank_1(overdue=(item,))
    yield "section: nobody waits", verdict([], [rank(0, 4), rank(1, 4, site=SITE, overdue=(LOADING,)), rank(2, 4)])
    alike = [rank(r, 4, overdue=(LOADING._replace(age=10.0 + r),)) for r in range(3)]
    yield "section: several ranks", verdict([], alike)
    yield "section: its monitor ended the rank", without_rank_1(overdue=(LOADING,), ended_by_monitor=True, **STOPPED)
    exchange = Overdue("section", "exchange", 0.6, 0.5)
    ended = [rank(r, 5, overdue=(exchange,), ended_by_monitor=True, **STOPPED) for r in (0, 2)]
    found = verdict([call(r, age=0.6) for r in (0, 2)], [*ended, rank(1, 4, **STOPPED)])
    yield "section: their monitors ended the ranks that waited", found


LOADING = Overdue("section", "loading", 12.0, 2.0)
BEAT, OUTSIDE = Overdue("heartbeat", "", 70.0, 60.0), Overdue("outside", "", 70.0, 60.0)


def mismatches() -> Cases:
    double = SUM._replace(input_dtypes=("Double",), output_dtypes=("Double",))
    rooted = BROADCAST._replace(root=0)
    odd = {"operation": (SUM, BARRIER), "size": (SUM, LARGE), "dtype": (SUM, double), "reduce op": (SUM, MAX)}
    for name, (usual, other) in {**odd, "root": (rooted, rooted._replace(root=1))}.items():
        calls = [call(r, signature=other if r == 1 else usual, site="train.py:5 step") for r in range(3)]
        yield f"{name} of one of three", verdict(calls, [rank(r, 5) for r in range(3)])
        yield f"{name} of one of two", verdict(calls[:2], [rank(r, 5) for r in range(2)], size=2)
    exchange = Signature("all_to_all_single", ((3,),), ((3,),), ("Float",), ("Float",))
    uneven = exchange._replace(input_splits=(1, 1, 1), output_splits=(1, 1, 1))
    wrong = uneven._replace(input_sizes=((4,),), input_splits=(2, 1, 1))
    calls = [call(r, signature=wrong if r == 2 else uneven) for r in range(3)]
    yield "size of one piece of an exchange", verdict(calls, [rank(r, 5) for r in range(3)])
    flat = Signature("all_gather", ((4,),), ((13,),), ("Float",), ("Float",))
    calls = [call(r, 5, DONE, flat._replace(input_sizes=((size,),))) for r, size in enumerate((4, 6, 5))]
    yield "size of all of a gather", verdict(calls, [rank(r, 5) for r in range(3)])
    halves = [message(0, "send", 1), message(1, "recv", 0, length=3)]
    yield "size of a message", verdict(halves, [rank(0), rank(1), rank(2)])
    first, second = (0, 1, 2), (1, 2, 3)
    calls = [made(0, 1, "a", first), made(1, 1, "a", first), made(2, 1, "b", second), made(3, 2, "b", second)]
    yield "groups made in another order", verdict(calls, [rank(r, 0) for r in range(4)], size=4)
    calls = [*(made(r, 1, "tp", state=DONE) for r in (0, 1, 3)), made(2, 1, "dp", state=DONE)]
    calls += [made(r, 2, "dp") for r in (0, 1, 3)]
    yield "one name of two groups", verdict(calls, [rank(r, 0) for r in range(4)], size=4)


def messages() -> Cases:
    waiting = [rank(0, 0), rank(1, 0), rank(2, 1)]
    in_barrier = call(2, 1, signature=BARRIER)
    calls = [message(0, "send", 1), call(1, 2, signature=BARRIER)]
    yield "no receive", verdict(calls, [rank(0, 1), rank(1, 2), rank(2)])
    ended = [rank(0), rank(1, ending=Ending.CLEAN), rank(2)]
    yield "no receive of a rank that has ended", verdict([message(0, "send", 1)], ended)
    yield "nothing is known of the receiver", judge([message(0, "send", 1)], [rank(0)], [world(3)])
    yield "sent to the wrong rank", verdict([message(0, "send", 2), message(1, "recv", 0), in_barrier], waiting)
    yield "received from the wrong rank", verdict([message(0, "send", 1), message(1, "recv", 2), in_barrier], waiting)
    tags = [message(0, "send", 1, tag=1), message(1, "recv", 0, tag=2), in_barrier]
    yield "tags that differ", verdict(tags, waiting)
    pipes = [Group(f"pp{i}", f"pp{i}", "mesh_pp", (i, i + 3)) for i in range(3)]
    for operation in ("send", "recv"):
        calls = [call(r, 1, record=11) for r in range(6) if r != 3]
        calls.append(message(3, operation, 0, 3, group=pipes[0], pair_index=2))
        infos = [rank(r, int(r != 3), 0) for r in range(6)]
        for info in infos:
            info.progress["w"].messages = 0
            info.progress[f"pp{info.rank % 3}"] = Progress(0, 0, messages=3 if info.rank == 3 else 2)
        yield f"one {operation} too many", verdict(calls, infos, *pipes, size=6)


def deadlocks() -> Cases:
    yield "both send first", verdict([message(0, "send", 1), message(1, "send", 0)], [rank(0), rank(1), rank(2)])
    circle = [message(r, "recv", (r - 1) % 100) for r in range(100)]
    yield "a hundred ranks", verdict(circle, [rank(r) for r in range(100)], size=100)
    shard = Group("s", "1", "tp", (0, 1))
    calls = [call(0, 5, group=shard, record=10), call(0, 3, record=11), call(1, 3, record=10)]
    calls += [call(1, 5, group=shard, record=11), call(2, 3, record=10)]
    ranks = [rank(0, 3, 2, counts={"s": (5, 4)}), rank(1, 3, 2, counts={"s": (5, 4)}), rank(2, 3, 2)]
    yield "two groups in opposite orders", verdict(calls, ranks, shard)
    ranks = [
        rank(0, counts={"a": (7, 6), "b": (6, 6)}, stack=SYNC),
        rank(1, counts={"a": (6, 6), "b": (7, 6)}, stack=in_line("loss.item()")),
    ]
    yield "through devices", judge([in_sync(0, "a"), in_sync(1, "b")], ranks, PAIRS, 2)
    calls = [call(0, 20, group="a", record=60), call(0, 30, group="b", record=61, queued=True)]
    calls += [call(1, 30, group="b", record=60), call(1, 20, group="a", record=61, queued=True)]
    ranks = [rank(r, counts={"a": (20, 19), "b": (30, 29)}) for r in (0, 1)]
    yield "two devices begin in opposite orders", judge(calls, ranks, PAIRS, 2)
    mesh = mesh_model.mesh((2, 4))
    rng = random.Random(1)
    program = mesh_model.Program(((mesh.axes[1], SUM), (mesh.everyone, SUM)), 4)
    programs = {r: program.calls(r) for r in range(8)}
    programs[5] = [*programs[5][:2], programs[5][3], programs[5][2], *programs[5][4:]]
    machine = Machine(programs)
    machine.run(rng)
    yield "one of many takes another order", diagnose(machine.evidence())


def stalls() -> Cases:
    calls = [call(r) for r in range(3)]
    yield "all have joined", verdict(calls, [rank(r, 5) for r in range(3)])
    here: dict[str, Any] = {"place": Place("n0"), "addresses": ("10.0.0.1",), "unreached": ("10.0.0.2:41234",)}
    there: dict[str, Any] = {"place": Place("n1"), "addresses": ("10.0.0.2",)}
    yield "their hosts do not reach each other", verdict(calls, [rank(0, 5, **here), rank(1, 5, **there), rank(2, 5)])
    far: dict[str, Any] = {"place": Place("n0"), "addresses": ("10.0.0.1",), "round_trips": (("10.0.0.2", 0.41),)}
    yield "the link between their hosts is slow", verdict(calls, [rank(0, 5, **far), rank(1, 5, **there), rank(2, 5)])
    yield "a watchdog has aborted some", verdict(calls, [rank(0, 5, **ABORTED), rank(1, 5, **ABORTED), rank(2, 5)])
    refused: dict[str, Any] = {
        "ending": Ending.RAISED,
        "exception": "ValueError: ProcessGroupGloo::allgather: invalid tensor size",
    }
    failed = [call(r, state=FAILED, age=None, duration=0.0, error="collective_failed") for r in range(3)]
    yield "the backend refuses it", verdict(failed, [rank(r, 5, **refused) for r in range(3)])
    closed: dict[str, Any] = {"ending": Ending.RAISED, "exception": "RuntimeError: Connection closed by peer"}
    yield "it failed for all", verdict(failed, [rank(r, 5, **closed) for r in range(3)])
    yield "it failed for one", verdict(failed[:1], [rank(0, 5, **closed), rank(1, 4, idle=0.5), rank(2, 4, idle=0.5)])
    ranks = [rank(0, 6, place=Place("n0")), rank(1, 5), rank(2, 5, 4, **UNHEARD, heard_at=1e3, place=Place("n1"))]
    yield "a host is lost in the middle of it", verdict([call(1, 5), call(0, 6)], ranks)
    timed_out = [made(r, 1, state=FAILED, age=300.0, duration=300.0, error="timeout") for r in range(4)]
    yield "the making of a group timed out", verdict(timed_out, [rank(r, 0) for r in range(4)], size=4)
    groups = [Group("t0", "t0", "tp", (0, 1)), Group("d0", "d0", "dp", (0, 2)), Group("d1", "d1", "dp", (1, 3))]
    calls = [call(r, 5, DONE, group="t0") for r in (0, 1)]
    calls += [call(r, 1, UNKNOWN, group=f"d{r - 2}", record=6) for r in (2, 3)]
    counts: list[dict[str, tuple[int | None, int | None]]] = [
        {f"t{r // 2}": (5, None), f"d{r % 2}": (int(r > 1), None)} for r in range(4)
    ]
    ranks = [rank(r, counts=own) for r, own in enumerate(counts)]
    yield (
        "those that others wait for may wait in a call",
        verdict(calls, ranks, *groups, Group("t1", "t1", "tp", (2, 3)), size=4),
    )


def late() -> Cases:
    timed_out: dict[str, Any] = {"state": FAILED, "error": "timeout", "duration": 6.0, "timeout": 6.0, "gap": 0.01}
    failed: dict[str, Any] = {**timed_out, "error": "collective_failed", "duration": 0.1, "gap": 8.0}
    calls = [call(r, **(failed if r == 1 else timed_out)) for r in range(3)]
    job = Job()
    job.steps(300, 1)
    yield "it comes last in most steps", [change.incident.finding for change in job.judge()]
    yield "its host gives it no processor", without_rank_1(starved=8.4, python_blocked=True)
    yield "it came after the timeout", verdict(calls, [rank(r, 5, ending=Ending.RAISED) for r in range(3)])


def cases() -> Cases:
    tables = (missing, missing_and_ended, missing_in_step, dead, stuck, overdue, mismatches)
    for table in (*tables, messages, deadlocks, stalls, late):
        yield from table()
    yield from rare()


def _fields(one: Finding) -> str:
    where = f", stuck on {one.stuck_on}" if one.stuck_on else ""
    return f"= {one.key}: culprits {list(one.culprit_ranks)}, waiting {list(one.waiting_ranks)}{where}"


def wording() -> dict[Category, str]:
    """What each file holds."""
    texts = {category: [f"What to do: {WHAT_TO_DO[category]}\n"] for category in Category}
    for name, findings in cases():
        found = causes(findings)
        told = [line for one in found for line in (one.summary, *(f"  {text}" for text in one.details), _fields(one))]
        following = [f"... and {len(findings) - len(found)} that follow"] if len(findings) > len(found) else []
        texts[found[0].category].append("\n".join([f"# {found[0].rule}: {name}", *told, *following]) + "\n")
    return {category: "\n".join(parts) for category, parts in texts.items()}


if __name__ == "__main__":
    for category, text in wording().items():
        (FOLDER / f"{category.value}.txt").write_text(text)
