"""All runs that the collector knows, and the bounds on their total size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from otel_fr.presentation import group_name
from otel_fr.waits.blocks import StragglerLimits
from otel_fr_collector import timeline
from otel_fr_collector.jobs.lateness import Attention
from otel_fr_collector.jobs.past_numbers import PastNumbers
from otel_fr_collector.jobs.run import MAX_RANKS_PER_RUN, Run, RunId
from otel_fr_collector.jobs.tallies import PastTallies
from otel_fr_collector.jobs.usage import MAX_KEPT, Usage
from otel_fr_collector.network.tokens import tenant_of
from otel_fr_collector.shares import Holdings, Owner
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

MAX_RUNS = 4_096
MAX_WEIGHT = 300_000
"""Calls kept over all runs, of about 0.3 kB each; fewer where `usage.MAX_KEPT` is reached. Beyond the limit, the run
with the most calls loses its oldest ones."""


class Runs:
    """All runs, ordered by their latest telemetry, oldest first.

    Args:
        tenant_of: the tenant of a job's name.
        most: bytes that all runs together may take.
    """

    def __init__(
        self,
        max_runs: int = MAX_RUNS,
        max_weight: int = MAX_WEIGHT,
        tenant_of: Callable[[str], str] = tenant_of,
        straggler_limits: StragglerLimits | None = None,
        most: int = MAX_KEPT,
    ) -> None:
        self._straggler_limits = straggler_limits or StragglerLimits()
        self._max_runs = max_runs
        self._max_weight = max_weight
        self._tenant_of = tenant_of
        self._unweighed = 0
        self._held = Holdings()
        self._newest: Run | None = None
        self.by_id: dict[RunId, Run] = {}
        self.by_tenant: dict[str, dict[RunId, Run]] = {}
        """The runs of each tenant, in the same order."""
        self.usage = Usage(most)
        self.attention = Attention()
        self.past = PastTallies()
        self.past_numbers = PastNumbers()
        self.crowded: set[RunId] = set()
        """Runs that lacked room for some of their ranks at the last check (`note_crowded`)."""
        self._told = set[RunId]()
        self._log = Throttle()

    def get(self, run_id: RunId, now: float) -> Run | None:
        """Return the run, created if missing, and move it to the end of the order. None: there is no room for it.

        To make room, the tenant with the most runs loses the run that has sent telemetry for the shortest time. If
        that is the newcomer's own tenant, only a run that is hardly known, or a silent one, is dropped. So a client
        that makes up names evicts no real job.
        """
        newest = self._newest
        if newest is not None and newest.id is run_id:
            return newest  # already at the end: mostly, successive requests are of the same run
        run = self.by_id.pop(run_id, None)
        if run is None:
            tenant = self._tenant_of(run_id.job)
            if len(self.by_id) >= self._max_runs and not self._make_room(now, Owner(tenant, run_id.job)):
                self.usage.refused["runs"] += 1
                return None
            run = Run(run_id, now, now, tenant=tenant, usage=self.usage, attention=self.attention)
            run.straggler_limits = self._straggler_limits
            self.usage.runs += 1
            self._held.add(Owner(tenant, run_id.job))
            own = self.by_tenant.setdefault(tenant, {})
        else:
            own = self.by_tenant[run.tenant]
            del own[run_id]
        self.by_id[run_id] = own[run_id] = self._newest = run
        return run

    def beside(self, run: Run) -> list[Run]:
        """The other runs of the same job and attempt, oldest first, unless they were over when the run began.

        Processes may begin a new run within an attempt.
        """
        own = self.by_tenant.get(run.tenant, {}).values()
        others = (one for one in own if one.id[:2] == run.id[:2] and one is not run and not _was_over(one, run))
        return sorted(others, key=lambda one: one.first_seen)

    def before(self, run: Run) -> Run | None:
        """The run that this run's processes were in before. None if there was none, or all ranks have arrived here."""
        if len(run.ranks) >= (run.world_size or 0):
            return None
        others = self.beside(run)
        earlier = [one for one in others if one.first_seen < run.first_seen]
        # After a restart of the collector, it may hear from the runs in another order.
        return earlier[-1] if earlier else next(iter(others), None)

    def trim(self, added: int | None = None) -> None:
        """Enforce the bound on calls kept, and make room if something was refused.

        Args:
            added: weight of the calls added since the last call of this method. All runs are weighed once enough has
                been added. None: weigh now.
        """
        if self.usage.is_full and self.by_id:
            self.usage.is_full = False
            newest = next(reversed(self.by_id.values()))
            self._make_room(newest.last_seen, Owner(newest.tenant, newest.id.job), newest)
        if added is not None:
            self._unweighed += added
            if self._unweighed < self._max_weight // 32:
                return
        self._unweighed = 0
        weights = {run_id: run.weight for run_id, run in self.by_id.items()}
        total = sum(weights.values())
        most = self.usage.room_for_calls(self._max_weight)
        while total > most:
            run_id = max(weights, key=lambda key: weights[key])
            group = max(self.by_id[run_id].groups.values(), key=lambda group: group.weight)
            before = group.weight
            for _ in range(max(1, len(group.incomplete) // 8, len(group.completed) // 8)):
                group.evict()
            if group.weight == before and not group.evict(even_disagreeing=True):
                return
            weights[run_id] -= before - group.weight
            total -= before - group.weight

    def note_crowded(self, now: float) -> None:
        """Find the runs that lack room for some of their ranks, and log each once, one at a time."""
        self.crowded = {
            run.id
            for run in self.by_id.values()
            if run.lacks_ranks and len(run.ranks) != run.world_size and now - run.last_seen < timeline.CLEAN_FORGET
        }
        self._told &= self.crowded
        for run_id in self.crowded - self._told:
            if self._log.allows(now=now):
                self._told.add(run_id)
                _log.warning(
                    "job %r: only %d of its ranks are kept (--job-memory, or the limit of %d ranks in a run);"
                    " nobody is named where others wait for the rest",
                    *(run_id.job, len(self.by_id[run_id].ranks), MAX_RANKS_PER_RUN),
                )

    def drop_ended(self, now: float) -> list[Run]:
        """Drop and return runs that have sent nothing for `CLEAN_FORGET` after a clean end, or for `IDLE_FORGET`."""
        over = [
            run
            for run in self.by_id.values()
            if now - run.last_seen > (timeline.CLEAN_FORGET if run.ended_clean else timeline.IDLE_FORGET)
        ]
        for run in over:
            self._drop(run)
        return over

    def _make_room(self, now: float, newcomer: Owner, asking: Run | None = None) -> bool:
        """Drop a run to make room; False: none may be dropped. ``asking``: the known run that needs room; it stays."""
        largest = self._held.largest_tenant(newcomer)
        victim = _least_known(run for run in self.by_tenant.get(largest, {}).values() if run is not asking)
        if victim is None:
            return False
        if largest == newcomer.tenant and victim.known_for >= timeline.ESTABLISHED:
            silent = next((run for run in self.by_id.values() if now - run.last_seen > timeline.CLEAN_FORGET), None)
            if silent is None:
                return False
            victim = silent
        self._drop(victim)
        self.usage.evicted["runs"] += 1
        self.usage.evicted["calls"] += victim.call_count
        return True

    def evicted(self) -> dict[str, int]:
        """By kind, the number of evicted runs, instances and calls."""
        groups = [group for run in self.by_id.values() for group in run.groups.values()]
        return {
            "runs": self.usage.evicted["runs"],
            "instances": self.usage.evicted["instances"] + sum(group.evicted for group in groups),
            "calls": self.usage.evicted["calls"] + sum(group.evicted_calls for group in groups),
        }

    def _drop(self, run: Run) -> None:
        if run is self._newest:
            self._newest = None
        del self.by_id[run.id]
        own = self.by_tenant[run.tenant]
        del own[run.id]
        if not own:
            del self.by_tenant[run.tenant]
        self._held.add(Owner(run.tenant, run.id.job), -1)
        usage = self.usage
        usage.evicted["instances"] += sum(group.evicted for group in run.groups.values())
        usage.evicted["calls"] += sum(group.evicted_calls for group in run.groups.values())
        usage.runs -= 1
        usage.ranks -= len(run.ranks)
        usage.groups -= len(run.groups)
        usage.members -= run.members
        usage.progress_entries -= run.progress_entries
        usage.reported -= sum(rank.held for rank in run.ranks.values())
        job = run.id.job
        goes_on = any(one.job == job for one in self.by_tenant.get(run.tenant, ()))
        for group in run.groups.values():
            if goes_on:
                self.past.add(job, group_name(group.group.name, group.group.description), group.waits.tallies)
            group.waits.release()
        if run.numbers is not None:
            if goes_on:
                self.past_numbers.add(job, run.numbers)
            run.numbers.release()
        if not goes_on:
            self.past.forget(job)
            self.past_numbers.forget(job)


def _was_over(before: Run, run: Run) -> bool:
    """Whether a run was over before another one of its attempt began, which has none of its processes: the job was
    started anew under its name.

    False if it was restored after a restart, because only some of its ranks are known then.
    """
    states, began = before.ranks.values(), run.first_seen
    is_silent = began - before.last_seen > timeline.ENDED_SECONDS
    ended = (s.report is not None and (is_silent or (s.ended is not None and s.ended < began)) for s in states)
    if not states or not all(ended):
        return False
    return {state.place.process for state in states}.isdisjoint([one.place.process for one in run.ranks.values()])


def _least_known(runs: Iterable[Run]) -> Run | None:
    """The run that has sent telemetry for the shortest time."""
    found: Run | None = None
    for run in runs:
        if found is None or run.known_for < found.known_for:
            found = run
            if not run.known_for:
                break
    return found
