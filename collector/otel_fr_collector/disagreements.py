"""Asks monitors for the calls of a group if its ranks have different fingerprints. The match engine compares the calls.

The rings have all calls, even if their spans were not sent, or were sent elsewhere. The range is narrowed in rounds:
the monitors answer with fingerprints of its parts, and with the calls once it is short. These calls are then handled
like calls from spans, so the verdict is the same as for any mismatch. A difference without a verdict names nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from otel_fr.presentation import group_text
from otel_fr.printable import one_line
from otel_fr_collector import timeline
from otel_fr_collector.control import Control
from otel_fr_collector.jobs.fingerprints import Inquiry, Window, untold_by
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.rank_reports import KeptRange
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

MAX_ASKED = 64
"""Ranks of a group that are asked. In a larger group, at most a third of these are ranks that differ from most."""
FEWEST = 3
"""Answers needed in a group of more than two ranks. Two answers that differ do not show which rank is the odd one."""
MAX_INQUIRIES = 64
"""Inquiries about one group. If its ranks differ in each step, the first inquiry leads to an incident."""


class Disagreements:
    """Follows the runs that have `Run.differences`."""

    def __init__(self, control: Control, metrics: Metrics) -> None:
        self._control = control
        self._metrics = metrics
        self._log = Throttle()

    def step(self, run: Run, now: float) -> None:
        """Ask the ranks that must be asked, and continue with their answers. ``now``: monotonic."""
        if run.is_replaced:
            run.differences.clear()
            return
        heard = now - run.lateness(now)
        for group_id in [group_id for group_id, old in run.differences.answered.items() if now >= old.deadline]:
            del run.differences.answered[group_id]
        for group_id, inquiry in list(run.differences.inquiries.items()):
            is_enough = len(inquiry.answers) >= _fewest(run.groups[group_id])
            if inquiry.is_over(heard if is_enough else heard - timeline.ANSWER_PATIENCE):
                del run.differences.inquiries[group_id]
                run.differences.answered[group_id] = inquiry.close(now + timeline.LATE_ANSWERS)
                self._go_on(run, run.groups[group_id], inquiry, now)
        for group_id, window in list(run.differences.windows.items()):
            if group_id in run.differences.inquiries or now - window.since < timeline.DIFFERENCE_SETTLE:
                continue
            group = run.groups[group_id]
            ranks = _to_ask(run, group, window.last, self._control.watching(run.id))
            if len(ranks) < min(len(group.group.ranks), MAX_ASKED) and now - window.since < timeline.ALL_REPORTED:
                continue
            del run.differences.windows[group_id]
            if group.inquiries >= MAX_INQUIRIES or group.shows_disagreement(window.first, window.last):
                continue
            group.inquiries += 1
            deadline = now + timeline.ANSWER_SECONDS
            self._ask(run, group, Inquiry(window.first, window.last, ranks, ranks, deadline, window))

    def _ask(self, run: Run, group: GroupState, inquiry: Inquiry) -> None:
        if len(inquiry.ranks) < _fewest(group):
            self._give_up(run, group, inquiry, "too few of its monitors are connected to this collector")
            return
        run.differences.inquiries[group.group.id] = inquiry
        self._control.fetch_calls(run.id, inquiry.ranks, group.group.id, inquiry.first, inquiry.last)

    def _go_on(self, run: Run, group: GroupState, inquiry: Inquiry, now: float) -> None:
        answers = inquiry.answers
        if len(answers) < _fewest(group):
            self._give_up(run, group, inquiry, "too few of its monitors answered")
            return
        first = max(one.first for one in answers.values())
        last, is_cut = inquiry.last, inquiry.is_cut or first > inquiry.first
        if first > last:
            self._give_up(run, group, inquiry, "its rings have overwritten these calls")
            return
        if all(one.first == first for one in answers.values()):
            sums = [one for one in answers.values() if one.fingerprint]
            part = _first_difference(sums, first) if sums else None
            if part is None:
                self._conclude(run, group, inquiry, now, is_cut=is_cut)
                return
            first, last = part
        # Ranks that did not answer are asked again, but not waited for: their answers may come late.
        awaited, deadline = frozenset(answers), now + timeline.ANSWER_SECONDS
        self._ask(run, group, Inquiry(first, last, inquiry.ranks, awaited, deadline, inquiry.window, is_cut=is_cut))

    def _conclude(self, run: Run, group: GroupState, inquiry: Inquiry, now: float, *, is_cut: bool) -> None:
        """End an inquiry: all calls that the rings still have were compared when they arrived."""
        window = inquiry.window
        if group.shows_disagreement(inquiry.first, inquiry.last):
            self._metrics.disagreements.labels("mismatch").inc()
        elif is_cut:
            self._give_up(run, group, inquiry, "its rings have overwritten the calls before that")
        elif window.first > 1 and not group.shows_disagreement(1, window.last):
            # The ranks that seemed to agree before the window may all have differed from the others.
            whole = Window(1, window.last, window.since)
            awaited, deadline = frozenset(inquiry.answers), now + timeline.ANSWER_SECONDS
            self._ask(run, group, Inquiry(1, window.last, inquiry.ranks, awaited, deadline, whole))
        else:
            self._metrics.disagreements.labels("none").inc()
            group.fingerprints.set_apart(group.fingerprints.odd(inquiry.answers))

    def _give_up(self, run: Run, group: GroupState, inquiry: Inquiry, why: str) -> None:
        self._metrics.disagreements.labels("undecided").inc()
        if not self._log.allows(run.id.job):  # a job may have thousands of groups
            return
        name = one_line(group_text(group.group.name, group.group.description))
        _log.warning(
            "job %r: ranks of group %s disagree about collectives %d to %d; cannot decide which is wrong: %s",
            *(run.id.job, name, inquiry.first, inquiry.last, why),
        )


def _fewest(group: GroupState) -> int:
    return min(FEWEST, max(2, len(group.group.ranks)))


def _to_ask(run: Run, group: GroupState, last: int, watching: set[int]) -> frozenset[int]:
    """Select the ranks to ask, among members that have reached the number ``last``."""
    members = [rank for rank in group.group.ranks if rank in watching and _reached(run, rank, group) >= last]
    if len(members) <= MAX_ASKED:
        return frozenset(members)
    odd = group.fingerprints.odd(members)
    others = sorted(set(members).difference(odd))
    odd = odd[: MAX_ASKED // 3]
    return frozenset([*odd, *others[: MAX_ASKED - len(odd)]])


def _reached(run: Run, rank: int, group: GroupState) -> int:
    state = run.ranks.get(rank)
    return state.progress[group.group.id][0] if state is not None and group.group.id in state.progress else 0


def _first_difference(answers: Sequence[KeptRange], first: int) -> tuple[int, int] | None:
    """The first part of a range in which the fingerprints differ, as first and last number; None: there is none.

    Compares ranks only with ranks whose recorders record the same.

    Args:
        answers: answers with fingerprints. Ranks that answered with calls have made few calls, and are left out.
    """
    found = [
        (untold_by(one.fingerprint), dict(zip(one.fingerprint[1::2], one.fingerprint[2::2], strict=False)))
        for one in answers
    ]
    begin, kinds = first, len({kind for kind, _ in found})
    for number in sorted(set.intersection(*(set(sums) for _, sums in found))):
        if len({(kind, sums[number]) for kind, sums in found}) > kinds:
            return begin, number
        begin = number + 1
    return None
