"""Who forms a process group anew: alike in all members that take part, whoever fails, and whenever."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.fault_tolerance.agreement import Agreement, Decision, Patience, ReconfigureError
from tests.support.waiting import PATIENCE

SHORT = Patience(whole=20.0, others=0.15, outcome=0.3)


class MemoryStore:
    """As c10d's stores; it can be made to break."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self.requests = 0
        self.is_broken = False

    def set(self, key: str, value: str, /) -> None:
        with self._lock:
            self._values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        self.requests += 1
        return self._values[key]

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        self.requests += 1
        return [self._values[key] for key in keys]

    def check(self, keys: list[str], /) -> bool:
        self.requests += 1
        if self.is_broken:
            raise OSError("Broken pipe")
        return all(key in self._values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        with self._lock:
            if key not in self._values and expected == "":
                self._values[key] = desired.encode()
            return self._values.get(key, expected.encode())


@dataclass
class Member:
    """One member in a thread of its own: it decides, "forms" the group, settles, and tries again after a failed round.

    Attributes:
        delay: seconds before it comes. dies: "never", before it "posts", before it "forms", or before it "settles".
        fails: the rounds in which it cannot form the group.
    """

    number: int
    delay: float = 0.0
    dies: str = "never"
    fails: frozenset[int] = frozenset()
    results: list[tuple[int, Decision, bool]] = field(default_factory=list)
    error: ReconfigureError | None = None

    def run(self, store: MemoryStore, members: tuple[int, ...], failed: set[int], patience: Patience) -> None:
        time.sleep(self.delay)
        if self.dies == "posts":
            return
        agreement = Agreement(store, "0", self.number, lambda: failed)
        try:
            for round_ in range(1, 7):
                decision = agreement.decide(round_, members, f"handle {self.number}", 1, patience)
                if self.dies == "forms":
                    return
                has_group = round_ not in self.fails
                if self.dies == "settles":
                    return
                done = agreement.settle(round_, decision, has_group, patience)
                self.results.append((round_, decision, done))
                if done:
                    return
                members = decision.members
        except ReconfigureError as error:
            self.error = error


def play(members: list[Member], failed: set[int] | None = None, patience: Patience = SHORT) -> None:
    store = MemoryStore()
    numbers = tuple(member.number for member in members)
    threads = [threading.Thread(target=one.run, args=(store, numbers, failed or set(), patience)) for one in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


kinds = st.builds(
    Member,
    st.just(0),
    st.sampled_from([0.0, 0.0, 0.0, 0.05, 0.2]),
    st.sampled_from(["never"] * 4 + ["posts", "forms", "settles"]),
    st.sampled_from([frozenset[int]()] * 3 + [frozenset({1}), frozenset({1, 2})]),
)


@given(st.lists(kinds, min_size=1, max_size=5))
def test_all_members_that_go_on_go_on_in_the_same_group(members: list[Member]) -> None:
    for number, member in enumerate(members):
        member.number = number
        member.results, member.error = [], None
    play(members)
    by_round: dict[int, set[tuple[Decision, bool]]] = {}
    for member in members:
        for round_, decision, done in member.results:
            by_round.setdefault(round_, set()).add((decision, done))
    assert all(len(found) == 1 for found in by_round.values()), "one decision and one outcome in each round"
    succeeded = [decision for member in members for _, decision, done in member.results if done]
    assert len(set(succeeded)) <= 1
    for member in members:
        if member.dies == "never" and member.error is None:
            assert member.results[-1][2] or len(member.results) == 6
    for decision in succeeded:
        assert decision.handles == tuple(f"handle {number}" for number in decision.members)
        assert 1 <= decision.uuid < 2**63


def test_members_that_have_failed_are_not_waited_for() -> None:
    members = [Member(0), Member(1, dies="posts"), Member(2)]
    play(members, {1}, Patience(whole=PATIENCE, others=None, outcome=PATIENCE))
    assert members[0].results == members[2].results
    ((_, decision, is_done),) = members[0].results
    assert (decision.members, is_done) == ((0, 2), True)


def test_a_member_of_a_large_group_makes_few_requests() -> None:
    """The store is one process, which all members ask at once."""
    store, members = MemoryStore(), range(4_000)
    for member in members:
        if member != 7:
            store.set(f"otel_fr/reconfigure/0/1/handle/{member}", f"handle {member}")
    decision = Agreement(store, "0", 0, lambda: {7, 8}).decide(1, members, "handle 0", 1, SHORT)
    assert decision.members == tuple(member for member in members if member != 7)
    assert store.requests <= 40


def test_a_member_that_comes_back_later_is_told_that_it_was_left_out() -> None:
    members = [Member(0), Member(1, delay=1.0), Member(2)]
    play(members, failed={1})
    assert members[0].results[0][1].members == (0, 2)
    assert members[1].results == []
    assert "was re-formed without this rank" in str(members[1].error)


def test_too_few_members_and_a_store_that_does_not_answer_are_said() -> None:
    store = MemoryStore()
    agreement = Agreement(store, "0", 0, set)
    with pytest.raises(ReconfigureError, match=r"only 1 of 3 members of group 0 came .* but 2 are needed"):
        agreement.decide(1, (0, 1, 2), "handle", 2, Patience(0.2, 0.1, 0.1))
    store.is_broken = True
    with pytest.raises(ReconfigureError, match=r"store does not answer.*Broken pipe.*TORCHELASTIC_USE_AGENT_STORE"):
        agreement.decide(2, (0, 1, 2), "handle", 1, SHORT)
