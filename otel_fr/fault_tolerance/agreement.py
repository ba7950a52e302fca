"""Members of a process group agree, over the job's store, which of them re-form it. Imports no torch.

Each round has a number, which is the same in all members. A member stores its handle. The first member that sees enough
handles proposes who takes part, and the store keeps only one proposal (``compare_set``). Whether a round succeeded is
decided in the same way, so that no member continues after another has given up the round. A member that is not in the
proposal, such as one that hung and came back, gets an error and takes no further part.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

_T = TypeVar("_T")

_PREFIX: Final = "otel_fr/reconfigure"
_POLL_SECONDS: Final = 0.02
_SUCCEEDED: Final = "succeeded"
_FAILED: Final = "failed"
_UUID_BITS: Final = 63


class Store(Protocol):
    """The methods of c10d's store that this module uses."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


class ReconfigureError(RuntimeError):
    """The process group could not be re-formed. The text says why, and what to do."""


@dataclass(frozen=True)
class Decision:
    """Who takes part in a round.

    Attributes:
        uuid: id of the new group, from 1 to 2**63 - 1.
        members: the members, under their former numbers. A member's position is its new rank.
        handles: the members' handles, in the same order.
    """

    uuid: int
    members: tuple[int, ...]
    handles: tuple[str, ...]


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds.

    Attributes:
        whole: time until a round must be decided.
        others: time to wait for members that are not known to have failed; None: until `whole`.
        outcome: time to wait, in a decided round, until the other members say that they have the new group.
    """

    whole: float
    others: float | None
    outcome: float


class Agreement:
    """One member's side of the agreement.

    Args:
        store: the job's store, which must outlive any rank.
        name: name of the group, the same in all members.
        own: this member.
        failed: returns the members that are known to have failed. This is only advice: it saves waiting for them.
    """

    def __init__(self, store: Store, name: str, own: int, failed: Callable[[], Collection[int]]) -> None:
        self._store = store
        self._name = name
        self._own = own
        self._failed = failed

    def decide(self, number: int, members: Sequence[int], handle: str, minimum: int, patience: Patience) -> Decision:
        """Take part in round ``number``.

        Args:
            members: the members of the previous round.
            handle: this member's handle.
            minimum: how many members must take part.

        Raises:
            ReconfigureError: this member was left out, too few members came in time, or the store does not answer.
        """
        begun = time.monotonic()
        decision = self._key(number, "decision")
        self._set(self._key(number, f"handle/{self._own}"), handle)
        while not self._check(decision):
            waited = time.monotonic() - begun
            is_late = patience.others is not None and waited >= patience.others
            is_over = waited >= patience.whole
            expected = {self._own} | set(members).difference(self._failed())
            have_come = self._check(*self._handle_keys(number, expected))
            came = self._came(number, members) if have_come or is_late or is_over else []
            if len(came) >= minimum and (have_come or is_late):
                self._propose(decision, came, number)
                break
            if is_over:
                raise ReconfigureError(
                    f"only {len(came)} of {len(members)} members of group {self._name} came within {waited:.0f} s to"
                    f" re-form it, but {minimum} are needed: restart the job"
                )
            time.sleep(_POLL_SECONDS)
        return self._read(decision)

    def settle(self, number: int, decision: Decision, has_succeeded: bool, patience: Patience) -> bool:
        """Report whether this member has the new group. Return True, in all members, if the round succeeded."""
        outcome = self._key(number, "outcome")
        if has_succeeded:
            self._set(self._key(number, f"has/{self._own}"), "1")
        begun = time.monotonic()
        while has_succeeded and not self._check(outcome):
            if self._check(*[self._key(number, f"has/{member}") for member in decision.members]):
                self._compare_set(outcome, _SUCCEEDED)
            elif time.monotonic() - begun >= patience.outcome:
                break
            else:
                time.sleep(_POLL_SECONDS)
        return self._compare_set(outcome, _FAILED) == _SUCCEEDED

    def _came(self, number: int, members: Sequence[int]) -> list[int]:
        """Return the members that have come. Few requests suffice if few are missing: all members ask one store."""
        if self._check(*self._handle_keys(number, members)):
            return list(members)
        half = len(members) // 2
        return [*self._came(number, members[:half]), *self._came(number, members[half:])] if half else []

    def _propose(self, decision: str, came: Sequence[int], number: int) -> None:
        keys = self._handle_keys(number, came)
        handles = [bytes(handle).decode() for handle in self._asked(lambda: self._store.multi_get(keys))]
        uuid = 1 + secrets.randbits(_UUID_BITS) % (2**_UUID_BITS - 1)
        self._compare_set(decision, json.dumps({"uuid": uuid, "members": list(came), "handles": handles}))

    def _read(self, key: str) -> Decision:
        found = json.loads(self._get(key))
        decision = Decision(int(found["uuid"]), tuple(found["members"]), tuple(found["handles"]))
        if self._own not in decision.members:
            raise ReconfigureError(
                f"group {self._name} was re-formed without this rank, which did not come in time: end it, and let"
                f" the launcher restart the job to have it back"
            )
        return decision

    # ---- the store

    def _key(self, number: int, rest: str) -> str:
        return f"{_PREFIX}/{self._name}/{number}/{rest}"

    def _handle_keys(self, number: int, members: Iterable[int]) -> list[str]:
        return [self._key(number, f"handle/{member}") for member in members]

    def _set(self, key: str, value: str) -> None:
        self._asked(lambda: self._store.set(key, value))

    def _get(self, key: str) -> str:
        return self._asked(lambda: bytes(self._store.get(key)).decode())

    def _check(self, *keys: str) -> bool:
        """Return True if all keys are set."""
        return self._asked(lambda: bool(self._store.check(list(keys))))

    def _compare_set(self, key: str, value: str) -> str:
        """Set a key if it is not set. Return its value after that."""
        return self._asked(lambda: bytes(self._store.compare_set(key, "", value)).decode())

    def _asked(self, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except Exception as error:
            raise ReconfigureError(
                f"the job's store does not answer, so group {self._name} cannot be re-formed: {error}. A process"
                f" that outlives the ranks must keep the store, such as torchrun's agent (TORCHELASTIC_USE_AGENT_STORE)"
            ) from error
