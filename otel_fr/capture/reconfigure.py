"""Re-forms the default process group without the ranks that have failed, for `otel_fr.reconfigure`.

torch 2.14 can re-form the communicator of a group that was created with ``enable_reconfigure=True``. Only
``init_process_group`` has this option. The ranks agree over the job's store which ranks take part
(`otel_fr.fault_tolerance.agreement`).
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
import weakref
from datetime import timedelta
from types import ModuleType
from typing import Any, Final

from otel_fr.capture import hook
from otel_fr.capture.replaced import C10D
from otel_fr.fault_tolerance.agreement import Agreement, Decision, Patience, ReconfigureError
from otel_fr.fault_tolerance.peers import peers

_log = logging.getLogger("otel_fr")

OTHERS_SECONDS: Final = 10.0
"""How long to wait for members that are not known to have failed. Their calls end when the first freed member closes
its connections. After that they need time to reach `otel_fr.reconfigure`."""
FORM_SECONDS: Final = 15.0
"""Longest time to connect to the other members, and then again to wait until all report that they are connected."""
MAX_ROUNDS: Final = 8


class _Life:
    """State of a group that can be re-formed. "Original rank": a rank's number when the group was created.

    Attributes:
        number: how many such groups this process had before: the same in all ranks, because all form each of them.
        own: the original rank of this process.
        members: the original ranks of the present members, in the order of their present ranks.
        rounds: number of attempts to re-form the group.
    """

    def __init__(self, group: Any) -> None:
        self.number = next(_numbers)
        self.own = int(group.rank())
        self.members = tuple(range(group.size()))
        self.rounds = 0


_numbers: Final = itertools.count()
_lives: weakref.WeakKeyDictionary[Any, _Life] = weakref.WeakKeyDictionary()


def reconfigure(timeout: float, minimum: int) -> tuple[int, int]:
    """See `otel_fr.reconfigure`."""
    c10d = sys.modules.get(C10D)
    if c10d is None or not c10d.is_initialized():
        raise ReconfigureError("there is no process group yet: call torch.distributed.init_process_group first")
    group = c10d._get_default_group()
    if not getattr(group, "supports_reconfigure", False):
        raise ReconfigureError(
            "cannot re-form the default process group: this needs torch 2.14 or later, and "
            "init_process_group(..., enable_reconfigure=True) with a backend that supports it, such as gloo"
        )
    life = _lives.get(group)
    if life is None:
        life = _lives[group] = _Life(group)
    deadline = time.monotonic() + timeout
    original = None if life.rounds else life.members
    for _ in range(MAX_ROUNDS):
        decision = _round(c10d, group, life, deadline, minimum)
        if decision is not None:
            _adopt(c10d, group, decision, is_new=decision.members != original)
            return decision.members.index(life.own), len(decision.members)
    raise ReconfigureError(f"no group could be formed in {MAX_ROUNDS} rounds: restart the job")


def _round(c10d: ModuleType, group: Any, life: _Life, deadline: float, minimum: int) -> Decision | None:
    """Run one round. None: the round failed, and the caller tries another one."""
    number = life.rounds
    life.rounds += 1
    left = max(0.1, deadline - time.monotonic())
    # The first round forms the group that the program asked for: all ranks.
    patience = Patience(left, min(OTHERS_SECONDS, left) if number else None, FORM_SECONDS)
    needed = max(1, minimum) if number else len(life.members)
    # The store may have what an earlier default group, which has the same name, has agreed on.
    store = c10d.PrefixStore(f"otel_fr/{life.number}", c10d._world.pg_map[group][1])

    def failed() -> set[int]:
        return {life.members[rank] for rank in peers.failed if rank < len(life.members)} if number else set()

    agreement = Agreement(store, group.group_name, life.own, failed)
    decision = agreement.decide(number, life.members, group.get_reconfigure_handle(), needed, patience)
    has_group = _form(group, decision)
    if not agreement.settle(number, decision, has_group, patience):
        return None
    life.members = decision.members
    return decision


def _form(group: Any, decision: Decision) -> bool:
    options = sys.modules["torch"]._C._distributed_c10d.ReconfigureOptions()
    options.uuid = decision.uuid
    options.handles = list(decision.handles)
    options.timeout = timedelta(seconds=FORM_SECONDS)
    hook.note_creation()
    try:
        group.reconfigure(options).wait()
    except RuntimeError as error:
        _log.warning("otel-fr: could not form the process group; trying again: %s", error)
        return False
    return True


def _adopt(c10d: ModuleType, group: Any, decision: Decision, is_new: bool) -> None:
    """Correct torch's table of the group's ranks, and record the re-formed group, as a new run if ``is_new``."""
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(len(decision.members))}
    peers.forget_all()
    hook.group_reconfigured(group, f"{decision.uuid:016x}" if is_new else "")
