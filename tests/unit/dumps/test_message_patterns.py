"""Which messages a rank made equally often in each step, from its own calls."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.dumps.message_patterns import MIN_STEPS, OwnCall, message_patterns, own_calls
from otel_fr.dumps.step_calls import MAX_RECORDS
from otel_fr.rank_report import MAX_PATTERNS, ReportedPattern
from otel_fr.ring import KIND_COLLECTIVE, KIND_P2P, GroupDef, Record, RecordState, SiteDef
from tests.support.rings import float_signature

SEND, RECV = (1, 2, 0), (2, 1, 0)
"""As rank 1 sends to rank 2, and receives from it."""


def calls(text: str) -> list[OwnCall]:
    """``s``: a send, ``r``: a receive, ``|``: a collective. Only the last call is in flight, if a ``.`` follows it."""
    names, numbers = text.rstrip("."), {"s": SEND, "r": RECV}
    open_ = len(names) - 1 if text.endswith(".") else -1
    return [
        OwnCall(at, "world", at != open_, names[: at + 1].count("|") if name == "|" else 0, numbers.get(name))
        for at, name in enumerate(names)
    ]


def found(text: str) -> list[str]:
    """``kept s``: up to a collective in flight; ``broken s``: in the last step."""
    names = {SEND: "s", RECV: "r"}
    return [
        f"{'kept' if one.step else 'broken'} {names[one.source, one.destination, one.tag]}"
        for one in message_patterns(calls(text))
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("|sr|sr|sr|.", ["kept s", "kept r"]),
        ("|ssr|ssr|ssr|.", ["kept s", "kept r"]),
        ("||s|s|s|.", ["kept s"]),
        ("|sr|sr|.", []),
        ("|r|r|r|s|s|s|r|.", []),
        ("|r|r|s|s|s|r|.", ["broken s"]),
        ("|s|ss|s|.", []),
        ("|sr|sr|sr|r|.", ["broken s", "kept r"]),
        ("|ssr|ssr|ssr|sr|.", ["broken s", "kept r"]),
        ("|sr|sr|sr|r|", ["broken s"]),
        ("|sr|sr|sr|", []),
        ("|sr|sr|sr|ssr|.", ["broken r", "kept r"]),
        ("|sr|sr|sr|srs|.", ["kept r"]),
        ("rsrsrsrsr.", []),
        ("rsrsrsrr.", ["broken s"]),
        ("rsrsrr.", []),
        ("rssrssrssrsr.", ["broken s"]),
        ("|ssrsrr|ssrsrr|ssrsrr|sr.", ["broken s"]),
        ("|ssrsrr|ssrsrr|sr.", []),
        ("|ssrsrr|ssrsrr|ssrsrr|ssr.", []),
        ("|sss|sss|sss|s|.", ["broken s"]),
        ("", []),
        ("s.", []),
    ],
    ids=str,
)
def test_steps_end_with_collectives_or_with_messages_like_the_one_in_flight(text: str, expected: list[str]) -> None:
    assert found(text) == expected


def put_off(names: str) -> set[str]:
    """The definition, spelled out: what follows three equal steps. Of the lengths of a step, the largest counts."""
    for length in range(len(names), 0, -1):
        for after in range(length):
            end = len(names) - length + after
            steps = [names[end - number * length :][:length] for number in (3, 2, 1)] if end >= 3 * length else []
            if len({*steps}) == 1 and names[end] != steps[0][0]:
                wanted, made = steps[0][0], names[end]
                return {f"broken {wanted}"} if "|" not in (wanted, made) and made in steps[0] else set()
        if len(names) >= 3 * length and names.endswith(names[len(names) - length :] * 3):
            return set()
    return set()


def of_dense_counts(text: str) -> set[str]:
    """The same of the counts: each step has one, and zeros before the first message, fewer than its steps, are none."""
    names = text.rstrip(".")
    ends = [("|", text.endswith("|."))]
    if text.endswith(("s.", "r.")):
        ends.append((names[-1], False))
    expected: set[str] = set()
    for mark, is_open in ends:
        marks = [at for at, name in enumerate(names) if name == mark]
        for kind in "sr":
            counts = [names[low:high].count(kind) for low, high in pairwise(marks)]

            def is_steady(some: list[int]) -> bool:
                own = some[next((at for at, count in enumerate(some) if count), len(some)) :]
                return len(own) >= MIN_STEPS and 2 * len(own) > len(some) and len(set(own)) == 1

            if is_open and is_steady(counts):
                expected.add(f"kept {kind}")
            elif is_steady(counts[:-1]) and counts[-1] < counts[-2]:
                expected.add(f"broken {kind}")
    return expected


@given(
    st.text(alphabet="|sr", max_size=40)
    | st.builds(
        lambda step, last: step * 4 + last, st.text(alphabet="|sr", max_size=6), st.text(alphabet="|sr", max_size=6)
    ),
    st.sampled_from(["", "."]),
)
def test_any_calls_are_counted_as_the_definition_says(names: str, open_: str) -> None:
    text = names + open_ if names else ""
    assert set(found(text)) == of_dense_counts(text) | put_off(names)


def test_only_the_calls_up_to_the_first_in_flight_count() -> None:
    """A device executes the others later."""
    made = calls("|sr|sr|sr|sr|")
    third = made[6]
    assert third.number == 3
    made[6] = third._replace(is_completed=False)
    assert message_patterns(made) == ()
    made = calls("|sr|sr|sr|s|")
    made[9] = made[9]._replace(is_completed=False)
    assert {one.step for one in message_patterns(made)} == {"world"}


def test_records_are_taken_with_their_direction_tag_and_state() -> None:
    group, site = GroupDef("a" * 16, "0", "default_pg", (0, 1), "gloo", 0), SiteDef((("train.py", 1, "main"),))

    def record(number: int, operation: str, state: RecordState = RecordState.COMPLETED, **fields: object) -> Record:
        kind = KIND_P2P if operation in ("send", "recv") else KIND_COLLECTIVE
        of = float_signature(operation, sizes=((4,),), **fields)
        return Record(number, 1, None, 1, state, 7, 0, 1, 0, kind, 0, 0, "MainThread", group, of, site)

    records = [
        record(0, "send", peer=5, tag=3),
        record(1, "recv", RecordState.IN_FLIGHT, peer=5),
        record(2, "recv", any_source=True),
        record(3, "all_reduce"),
    ]
    assert list(own_calls(records, 4)) == [
        OwnCall(0, group.id, True, ends=(4, 5, 3)),
        OwnCall(1, group.id, False, ends=(5, 4, 0)),
        OwnCall(3, group.id, True, number=7),
    ]


def test_a_report_has_those_that_were_broken_first_and_not_too_many() -> None:
    """As of a rank that sends to a hundred others, and left out the last one."""
    made: list[OwnCall] = []
    for step in range(6):
        made.append(OwnCall(len(made), "world", step < 5, number=step))
        for peer in range(100 if step < 4 else 99):
            made.append(OwnCall(len(made), "world", True, ends=(0, peer + 1, 0)))
    patterns = message_patterns(made[:-99])
    assert len(patterns) == MAX_PATTERNS
    assert patterns[0] == ReportedPattern("world", 0, 100)
    assert {one.step for one in patterns[1:]} == {"world"}


@pytest.mark.parametrize("groups", [1, 40, 500])
def test_as_many_calls_as_a_monitor_reads_take_little_time(groups: int) -> None:
    """Whatever they are: each call counts in the steps of each group."""
    made = [
        OwnCall(at, f"g{at % groups}", True, number=at)
        if at % 2
        else OwnCall(at, "world", at < MAX_RECORDS - 2, ends=(0, at % 1000, 0))
        for at in range(MAX_RECORDS)
    ]
    before = time.process_time()
    message_patterns(made)
    assert time.process_time() - before < 1.0
