"""Wraps c10d's rendezvous handler: a node joins only after its checks have passed (docs/guide/fault-tolerance.md)."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Final

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    dynamic_rendezvous,
    rendezvous_handler_registry,
)

from otel_fr.checks import plan, report, runner
from otel_fr.checks.model import JOB_STOPPED, NODE_EXCLUDED, NODE_FAILED, Result, Status
from otel_fr.checks.settings import AttributionSettings, CheckSettings, node_rank
from otel_fr.config import ATTEMPT_VARIABLE, Config
from otel_fr.rendezvous import BACKEND
from otel_fr.rendezvous.advice import EXCLUDE_NODE, STOP, Advice, Adviser
from otel_fr.rendezvous.membership import Membership
from otel_fr.rendezvous.order import NodeOrder

_log = logging.getLogger("otel_fr")

INNER: Final = "c10d"
LEAVE_SECONDS: Final = 5.0
"""Longest time to leave the rendezvous. If that fails, the other nodes notice after about 15 s that this node is gone.
"""

Checks = Callable[[bool], list[Result]]
"""Checks the node. The argument is True if ranks have already run on it."""


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    """Create the handler ``otel-fr``. All parameters are also passed to c10d's handler.

    Raises:
        SettingsError: an option of the checks cannot be used.
        Exception: any exception of c10d's handler.
    """
    settings = CheckSettings.read(conf=parameters.config)
    advice = AttributionSettings.read(conf=parameters.config)
    inner = RendezvousParameters(
        backend=INNER,
        endpoint=parameters.endpoint,
        run_id=parameters.run_id,
        min_nodes=parameters.min_nodes,
        max_nodes=parameters.max_nodes,
        local_addr=parameters.local_addr,
        **parameters.config,
    )

    def check(is_restart: bool) -> list[Result]:
        return runner.run(plan.tasks(settings, is_restart=is_restart))

    # The ranks get this run id from torchrun, and derive their job's name in the same way.
    job = Config.from_env({**os.environ, "TORCHELASTIC_RUN_ID": parameters.run_id}).job_id
    order = NodeOrder(node_rank(conf=parameters.config), parameters.local_addr or "")
    return CheckedRendezvous(rendezvous_handler_registry.create_handler(inner), check, Adviser.of(advice, job), order)


class CheckedRendezvous(RendezvousHandler):  # type: ignore[misc]  # torch is not analysed
    """Wraps another handler. Attributes that `RendezvousHandler` does not define are forwarded to it.

    Args:
        inner: the other handler.
        check: runs before each rendezvous.
        adviser: asked before each rendezvous except the first; None: no advice.
        order: decides the ranks of the nodes; None: the other handler does.
    """

    def __init__(
        self, inner: RendezvousHandler, check: Checks, adviser: Adviser | None = None, order: NodeOrder | None = None
    ) -> None:
        self._inner = inner
        self._check = check
        self._adviser = adviser
        self._order = order
        self._membership = Membership(inner)
        self._has_joined = False
        self._stays_out = False

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        found: bool = self._inner.use_agent_store
        return found

    def next_rendezvous(self) -> RendezvousInfo:
        """Check this node, then join.

        Raises:
            SystemExit: this node stays out, and its agent ends. The status is `NODE_FAILED` if a check failed, and
                `NODE_EXCLUDED` or `JOB_STOPPED` if the collector advises this and advice is followed.
            Exception: any exception of the other handler.
        """
        results = self._check(self._has_joined)
        report.publish(results)
        if any(result.status is Status.FAILED for result in results):
            report.say("this node stays out of the job")
            self._leave()
            raise SystemExit(NODE_FAILED)
        if self._has_joined and self._adviser is not None and not self._membership.look():
            self._follow(self._adviser.before_restart())
        self._forget_address()
        info = self._inner.next_rendezvous()
        self._has_joined = True
        self._tell_attempt()
        self._membership.begin()
        return info if self._order is None else self._order.apply(info, self.use_agent_store)

    def _tell_attempt(self) -> None:
        """Give the ranks of all nodes the same attempt number: the round of the rendezvous.

        An agent whose own ranks did not fail does not count a restart, so TORCHELASTIC_RESTART_COUNT differs.
        """
        os.environ.pop(ATTEMPT_VARIABLE, None)
        with contextlib.suppress(AttributeError):
            os.environ[ATTEMPT_VARIABLE] = str(self._inner._state_holder.state.round)

    def _forget_address(self) -> None:
        """Make the nodes agree again on the address of the ranks' store.

        c10d's handler keeps the address of its first rendezvous, and does not share it in later ones (torch 2.6 to
        2.14). So a node that comes later, such as a spare, would wait for it in vain, and the others might keep the
        address of a node that has left.
        """
        if getattr(self._inner, "_bootstrap_store_info", None) is not None:
            self._inner._bootstrap_store_info = None

    def _follow(self, advice: Advice | None) -> None:
        if advice is None:
            return
        if advice.recommendation == STOP:
            report.say("the job is stopped")
            self._stays_out = True
            with contextlib.suppress(Exception):  # if the store no longer exists, the other nodes end because of that
                self._inner.set_closed()
            raise SystemExit(JOB_STOPPED)
        if advice.recommendation == EXCLUDE_NODE and advice.is_here:
            report.say("this node stays out of the job")
            self._leave()
            raise SystemExit(NODE_EXCLUDED)

    def _leave(self) -> None:
        """Take this node out of the rendezvous, which continues without it.

        torch has no public call for this: its agents close the rendezvous for all nodes, or let the others notice. So
        this uses private parts of torch's handler, if they exist.
        """
        self._stays_out = True
        with contextlib.suppress(AttributeError):
            self._inner._stop_heartbeats()
        try:
            operation = dynamic_rendezvous._RendezvousExitOp()
            self._inner._op_executor.run(operation, time.monotonic() + LEAVE_SECONDS)
        except Exception as error:  # noqa: BLE001 - the store may be gone, and private names change
            _log.info("could not take this node out of the rendezvous: %s: %s", type(error).__name__, error)

    def is_closed(self) -> bool:
        found: bool = self._inner.is_closed()
        return found

    def set_closed(self) -> None:
        self._inner.set_closed()

    def num_nodes_waiting(self) -> int:
        found: int = self._inner.num_nodes_waiting()
        if found:
            self._membership.look()
        return found

    def get_run_id(self) -> str:
        found: str = self._inner.get_run_id()
        return found

    def shutdown(self) -> bool:
        """Shut down the other handler, except on a node that stays out: it must not close the others' rendezvous."""
        self._membership.close()
        return True if self._stays_out else bool(self._inner.shutdown())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)
