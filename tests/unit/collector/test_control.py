"""Control streams: one for all ranks of a machine, on which each gets its own commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from otel_fr_collector.control import MAX_RANKS, Control, Watcher
from otel_fr_collector.jobs.run import RunId

from otel_fr.control.v1.control_pb2 import Command, Dump, Incident, PeerFailed, WatchRequest

RUN = RunId("job", 0, "r")
DUMP = Command(dump=Dump(reason="asked"))


def request(*ranks: int) -> WatchRequest:
    return WatchRequest(job_id="job", run_id="r", rank=ranks[0], others=ranks[1:])


class Received(NamedTuple):
    kind: str | None
    ranks: list[int]


def taken(watcher: Watcher) -> list[Received]:
    """What waits for it, and for which ranks; none: for all."""
    found = []
    while not watcher._commands.empty():
        data = watcher._commands.get_nowait()
        assert data is not None
        command = Command.FromString(data)
        found.append(Received(command.WhichOneof("command"), list(command.ranks)))
    return found


@pytest.fixture
def control() -> Control:
    return Control()


@pytest.fixture
def nodes(control: Control) -> Iterator[tuple[Watcher, Watcher, Watcher]]:
    """Of two machines with two ranks, and a monitor that names one rank."""
    with contextlib.ExitStack() as stack:
        first, second, alone = (stack.enter_context(control.watch(request(*ranks))) for ranks in ((1, 0), (2, 3), (4,)))
        yield first, second, alone
    assert control.count == 0


def test_a_command_names_the_ranks_that_it_is_for_unless_it_is_for_all_of_a_stream(
    control: Control, nodes: tuple[Watcher, Watcher, Watcher]
) -> None:
    first, second, alone = nodes
    assert control.watching(RUN) == {0, 1, 2, 3, 4}
    assert control.count == 3
    assert control.send(RUN, DUMP) == 5
    assert [taken(one) for one in nodes] == [[("dump", [])]] * 3
    assert control.send(RUN, DUMP, frozenset({0, 2, 3, 4, 9})) == 4
    assert taken(first) == [("dump", [0])]
    assert taken(second) == taken(alone) == [("dump", [])]
    assert control.send(RUN, DUMP, frozenset({3})) == 1
    assert [taken(one) for one in nodes] == [[], [("dump", [3])], []]


def test_ranks_that_are_added_learn_what_stands_and_the_others_do_not_hear_it_again(
    control: Control, nodes: tuple[Watcher, Watcher, Watcher]
) -> None:
    first, *_ = nodes
    control.set_standing(RUN, [Command(peer_failed=PeerFailed(ranks=[3]))])
    control.tell(RUN, Incident(incident_id="i"))
    assert taken(first) == [("incident", [])]
    control.serve(first, request(1, 0, 8, 9))
    assert taken(first) == [("peer_failed", [8, 9]), ("incident", [8, 9])]
    assert control.watching(RUN) == {0, 1, 2, 3, 4, 8, 9}
    control.serve(first, request(1, 9))
    assert taken(first) == []
    assert control.watching(RUN) == {1, 2, 3, 4, 9}


def test_the_ranks_of_a_stream_are_bounded(control: Control) -> None:
    with control.watch(request(*range(10 * MAX_RANKS), 5)) as watcher:
        assert watcher.ranks == tuple(range(MAX_RANKS))
