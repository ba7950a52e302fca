"""Cases of `tests.unit.match.wording` for rules that need several conditions at once."""

from __future__ import annotations

from collections.abc import Iterator

from otel_fr.match import Call, CallState, Ending, Finding, Group, NewGroup, Place, Rank, Signature
from tests.support.evidence import FLOAT, call, message, rank, verdict

FAILED = CallState.FAILED
SAVE = Signature("broadcast", ((8,),), ((8,),), FLOAT, FLOAT, root=0)
PIPES = tuple(Group(f"pp{i}", f"pp{i}", "mesh_pp", (i, i + 3)) for i in range(3))
"""Three pipelines of two stages: ranks 0 to 2, and 3 to 5."""


def threads_share_a_group() -> list[Finding]:
    calls = [call(r, 5) for r in (1, 2)] + [call(0, 5, signature=SAVE, thread="saver")]
    calls += [call(r, 6, signature=SAVE, thread="saver") for r in (1, 2)] + [call(0, 6)]
    return verdict(calls, [rank(r, 6) for r in range(3)])


def a_wrong_peer_of_a_rank_that_ended_well() -> list[Finding]:
    ended = rank(0, ending=Ending.CLEAN, exit_code=0)
    return verdict([message(1, "recv", 2), message(2, "send", 0)], [ended, rank(1), rank(2)])


def a_message_too_many_behind_a_collective() -> list[Finding]:
    """The hosts run ahead of their devices: all have joined the collective, which waits for the device of rank 3."""
    made = [3 if r == 3 else 2 for r in range(6)]
    ranks = [rank(r, 1, 0, counts={PIPES[r % 3].id: (0, 0)}) for r in range(6)]
    for info, messages in zip(ranks, made, strict=True):
        info.progress["w"].messages, info.progress[PIPES[info.rank % 3].id].messages = 0, messages
    calls: list[Call] = [message(3, "send", 0, 3, group=PIPES[0], record=10, pair_index=2)]
    return verdict([*calls, *(call(r, 1, record=11) for r in range(6))], ranks, *PIPES, size=6)


def a_message_left_out_behind_a_collective() -> list[Finding]:
    calls = [call(r, 9, record=200) for r in range(4)] + [message(2, "recv", 1, record=101)]
    calls += [message(2, "send", 3, record=102), message(3, "recv", 2)]
    return verdict(calls, [rank(r, 9) for r in range(4)], size=4)


def a_creation_left_out() -> list[Finding]:
    new = Signature("new_group", new_group=NewGroup("1", "tp", (0, 1)))
    calls = [call(0, 1, signature=new, stream="group"), *(call(r, 1, record=50) for r in (1, 2))]
    return verdict(calls, [rank(r, int(r > 0)) for r in range(3)])


def a_late_rank_beside_one_without_evidence() -> list[Finding]:
    on_time = call(0, state=FAILED, error="timeout", duration=6.0, timeout=6.0, gap=0.01)
    late = call(1, state=FAILED, error="collective_failed", duration=0.1, timeout=6.0, gap=8.0)
    return verdict([on_time, late], [rank(0, 5), rank(1, 5), Rank(2, ending=Ending.UNKNOWN, complete=False)])


def a_host_that_is_lost_in_a_call_that_all_joined() -> list[Finding]:
    here = [rank(r, 5, place=Place("n0")) for r in (0, 1)]
    lost = rank(2, 5, place=Place("n1"), ending=Ending.UNKNOWN, complete=False, heard_at=1_700_000_000.0)
    return verdict([call(r) for r in range(3)], [*here, lost])


def rare() -> Iterator[tuple[str, list[Finding]]]:
    for case in (
        threads_share_a_group,
        a_wrong_peer_of_a_rank_that_ended_well,
        a_message_too_many_behind_a_collective,
        a_message_left_out_behind_a_collective,
        a_creation_left_out,
        a_late_rank_beside_one_without_evidence,
        a_host_that_is_lost_in_a_call_that_all_joined,
    ):
        yield case.__name__.replace("_", " "), case()
