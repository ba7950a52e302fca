"""The adapters, on what real tools printed."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.localisation.answers import Answer
from benchmarks.localisation.tools import debug_server, nvrx, otel_fr, torchfrtrace, watchdog, wrapper

MISSING = """\
Not all ranks joining collective, sequence number: 3
internal record id: 2
group info: 0:default_pg
collective: nccl:all_reduce
missing ranks: {2, 3}
input sizes: [[4, 4]]
expected ranks: {0, 1, 2, 3}
collective state: scheduled
"""
CULPRITS = """\
Collective sequence number: 2 has errors
error msg: Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'all_reduce'
Culprit rank 2; Error type: SIZE_OR_SYNTAX_MISMATCH
"""
TABLE = """\
PGID   | Process Group Desc        | Op Type    | Size            | Dtype    | Missing Ranks
41     | TENSOR,0                  | nccl:_all_gather_base | 4096 | BFloat16 | 12
58     | DATA,0                    | nccl:all_reduce | 120        | Float    | 12, 13
"""
SERVED = """\
=== FR Trace NCCL ===
--- Groups ---
id                     desc          size
0-4850097147344926394  default_pg       3
--- Collectives ---
  id    group_id  pass_check      collective_seq_id    p2p_seq_id    record_id  pg_desc       collective_name    input_sizes    output_sizes    expected_ranks    collective_state    collective_frames    input_numel    output_numel    missing_ranks    mismatch_collectives    type_of_mismatch
{}--- NCCL Calls ---
  id  collective_id      group_id    global_rank    traceback_id  collective_type    sizes
   0                            0              0               0  nccl:all_reduce    [[16384]]
"""  # noqa: E501
SERVED_ROW = "   0           0  True                           22             0           21  0:default_pg  nccl:all_reduce    [[16384]]      [[16384]]       {0, 1, 2}         scheduled           []                                                  {1}\n"  # noqa: E501
NCCL2 = "[rank{0}]:[E1126 22:00:34.8 WorkNCCL.cpp:192] [TC][rank={0}][name=0] Operation timed out after 12369 ms\n"
WATCHDOG = (
    "[rank{0}]:[E1126 18:22:46.7 ProcessGroupNCCL.cpp:689] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=15000) ran for 15001 milliseconds\n"
)
GLOO = "[rank{0}]: RuntimeError: [unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete\n"
ROOT_CAUSE = """\
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-26_18:50:39
  rank      : {0} (local_rank: {0})
  exitcode  : {1}
  traceback : {2}
============================================================
"""
ABSENT = "[rank0]: RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 15000 ms\n"
DIFFERS = (
    "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective: "
    "CollectiveFingerPrint(SequenceNumber=22, OpType={1}, TensorShape=[16384]), but Rank {2} is running collective: "
    "CollectiveFingerPrint(SequenceNumber=22, OpType={3}, TensorShape=[16384]).Collectives differ in the following\n"
)


def lines(*texts: str) -> list[tuple[float, str]]:
    """As they came, a second apart."""
    every = [line for text in texts for line in text.splitlines(keepends=True)]
    return [(100.0 + number, line) for number, line in enumerate(every)]


def ranks(answer: Answer) -> tuple[str, set[int]]:
    return answer.kind, set(answer.ranks)


def test_torchfrtrace() -> None:
    assert ranks(torchfrtrace.from_output(0, MISSING)) == ("ranks", {2, 3})
    assert ranks(torchfrtrace.from_output(0, CULPRITS)) == ("ranks", {1, 2})
    assert torchfrtrace.from_output(0, "loaded 3 files in 0.1s\n").kind == "silent"
    crashed = torchfrtrace.from_output(1, "Traceback (most recent call last):\nKeyError: ('0', 1)\n")
    assert (crashed.kind, crashed.text) == ("crash", "KeyError: ('0', 1)")


def test_nvidias_analyzer() -> None:
    assert ranks(nvrx.from_output(0, TABLE)) == ("ranks", {12, 13})
    assert nvrx.from_output(0, TABLE.splitlines()[0]).kind == "silent"
    assert nvrx.from_output(0, "").kind == "silent"
    assert nvrx.from_output(1, "KeyError: '0'\n").kind == "crash"


def test_the_debug_server() -> None:
    assert ranks(debug_server.from_text(SERVED.format(SERVED_ROW))) == ("ranks", {1})
    differs = SERVED_ROW.replace("{1}", "     {2: Collective(id=None, expected_ranks={0, 1, 2})}")
    assert debug_server.from_text(SERVED.format(differs)).ranks >= {2}
    assert debug_server.from_text(SERVED.format("")).kind == "silent"


def test_pytorchs_text_of_nccl2() -> None:
    found = watchdog.from_lines(lines(NCCL2.format(0), NCCL2.format(2)), 3)
    assert (ranks(found), found.at) == (("ranks", {1}), 100.0)


def test_the_wrapper() -> None:
    absent = wrapper.from_lines(lines("starting\n", ABSENT))
    assert (ranks(absent), absent.at) == (("ranks", {1, 2}), 101.0)
    differs = lines(DIFFERS.format(0, "ALLREDUCE", 2, "BROADCAST"), DIFFERS.format(1, "ALLREDUCE", 2, "BROADCAST"))
    assert ranks(wrapper.from_lines(differs)) == ("ranks", {2})
    assert ranks(wrapper.from_lines(differs[:1])) == ("ranks", {0, 2})
    assert wrapper.from_lines(lines("all is well\n")).kind == "silent"


def test_pytorchs_text_of_nccl() -> None:
    waits = [WATCHDOG.format(rank, 22, "ALLREDUCE", 16384) for rank in (0, 2)]
    missing = watchdog.from_lines(lines(*waits), 3)
    assert (ranks(missing), missing.at) == (("ranks", {1}), 100.0)
    other = WATCHDOG.format(1, 22, "BROADCAST", 16384)
    assert ranks(watchdog.from_lines(lines(*waits, other), 3)) == ("ranks", {1})
    same = WATCHDOG.format(1, 22, "ALLREDUCE", 16384)
    assert watchdog.from_lines(lines(*waits, same), 3).kind == "undecided"
    assert watchdog.from_lines(lines("all is well\n"), 3).kind == "silent"


def test_pytorchs_text_of_gloo() -> None:
    victims = [GLOO.format(0), GLOO.format(2), ROOT_CAUSE.format(2, 1, "To enable traceback see: ...")]
    assert ranks(watchdog.from_lines(lines(*victims), 3)) == ("ranks", {1})


def test_pytorchs_text_of_a_rank_that_failed_by_itself() -> None:
    raised = ["[rank1]: Traceback (most recent call last):\n", "[rank1]: ValueError: bad sample\n", GLOO.format(0)]
    assert ranks(watchdog.from_lines(lines(*raised, ROOT_CAUSE.format(1, 1, "")), 3)) == ("ranks", {1})
    killed = ROOT_CAUSE.format(2, -9, "Signal 9 (SIGKILL) received by PID 4711")
    assert ranks(watchdog.from_lines(lines(GLOO.format(0), killed), 3)) == ("ranks", {2})


def incident(name: str, culprits: list[int], caused_by: str | None = None, second: int = 0) -> dict[str, Any]:
    return {
        "id": name, "category": "missing_rank", "culprit_ranks": culprits, "caused_by": caused_by,
        "detected_at": f"2026-11-26T10:00:0{second}.500000Z",
    }  # fmt: skip


def test_otel_fr_live() -> None:
    one = otel_fr.from_changes([incident("a", [1], second=3), incident("b", [0], caused_by="a", second=4)])
    assert (ranks(one), one.at, one.strayed) == (("ranks", {1}), 1795687203.5, frozenset())
    corrected = otel_fr.from_changes([incident("a", [0]), incident("b", [1], second=5), incident("a", [0], "b")])
    assert (ranks(corrected), corrected.strayed) == (("ranks", {1}), frozenset({0}))
    assert otel_fr.from_changes([incident("a", [])]).kind == "undecided"
    assert otel_fr.from_changes([]).kind == "silent"


def test_otel_fr_on_files() -> None:
    report = json.dumps({"incidents": [incident("a", [2]), incident("b", [0], caused_by="a")]})
    assert ranks(otel_fr.from_report(1, report)) == ("ranks", {2})
    assert otel_fr.from_report(1, json.dumps({"incidents": [incident("a", [])]})).kind == "undecided"
    assert otel_fr.from_report(0, json.dumps({"incidents": []})).kind == "silent"
    assert otel_fr.from_report(3, "").kind == "undecided"
    assert otel_fr.from_report(2, "", "no readable file").kind == "crash"
    assert otel_fr.from_report(1, "", "Traceback ...").kind == "crash"
