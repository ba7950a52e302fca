"""What the communication of one job costs, as JSON: rates over time, waits by rank, and the slowest operations."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from otel_fr.match.lateness import Lateness
from otel_fr.presentation import group_name
from otel_fr.rate_answers import JobRates, LatestRates, OperationRates, RankWaits, Rates, SlowestRank
from otel_fr_collector.jobs import history
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.numbers import Durations, Key, Numbers, Series, bus_factor
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.tallies import RankTally

MAX_OPERATIONS = 20
"""Kinds of operations that are listed: those that took the most time."""
MAX_RANKS = 2_048
"""Ranks that are listed with their waits: those for which others waited longest, sorted by rank."""
CHUNK = 512
"""Tallies that are added up before the event loop runs other tasks."""
QUANTILE = 0.99


def latest_rates(run: Run, named: Sequence[tuple[GroupState, Lateness]], now: float) -> LatestRates:
    """The rates of about the latest minute, and the rank for which others wait.

    Args:
        named: the result of `Run.slowest`.
        now: monotonic time.
    """
    return {**_rates(run.history.latest(run.sample(now))), "slowest": _slowest(run, named, now)}


def _slowest(run: Run, named: Sequence[tuple[GroupState, Lateness]], now: float) -> SlowestRank | None:
    """The rank that costs the job most. None: no rank is late again and again."""
    if not named:
        return None
    state, one = max(named, key=lambda item: item[1].waited)
    steps = run.steps.per_second(now)
    return {
        "rank": one.rank,
        "process_group": group_name(state.group.name, state.group.description),
        "waited": round(one.waited, 4),
        "over_s": round(one.span, 1),
        "lost_per_step_s": _number(one.waited / steps if steps else None),
    }


async def rates(run: Run, now: float, wall: float) -> JobRates:
    """All rates of a run. Yields to the event loop now and then.

    Args:
        now, wall: monotonic and Unix time.
    """
    intervals = list(run.history.intervals())
    return {
        "latest": latest_rates(run, list(run.slowest(now)), now),
        "since_start": _rates(run.history.since_start(run.sample(now))),
        "intervals": {
            "at": [round(wall - (now - one.at), 1) for one in intervals],
            "collectives_per_s": [_number(one.collectives) for one in intervals],
            "bytes_per_s": [_number(one.size) for one in intervals],
            "bus_bandwidth": [_number(one.bus) for one in intervals],
            "wait_share": [_number(one.wait) for one in intervals],
            "step_s": [_number(one.step) for one in intervals],
        },
        "ranks": await _ranks(run),
        "operations": [] if run.numbers is None else _operations(run.numbers),
    }


def _rates(found: history.Rates | None) -> Rates:
    _, collectives, size, wait, bus, step = found or (None,) * 6
    return {
        "collectives_per_s": _number(collectives),
        "bytes_per_s": _number(size),
        "wait_share": _number(wait),
        "bus_bandwidth": _number(bus),
        "step_s": _number(step),
    }


async def _ranks(run: Run) -> RankWaits:
    """Waits by rank, added up over all groups, as parallel lists."""
    total: dict[int, RankTally] = {}
    count = 0
    for state in list(run.groups.values()):
        for rank, tally in list(state.waits.tallies.items()):
            total.setdefault(rank, RankTally()).add(tally)
            count += 1
            if count % CHUNK == 0:
                await asyncio.sleep(0)
    most = sorted(total, key=lambda rank: -total[rank].waited_for)[:MAX_RANKS]
    shown = sorted(most)
    return {
        "rank": shown,
        "came_last": [total[rank].came_last for rank in shown],
        "waited_for_s": [round(total[rank].waited_for, 3) for rank in shown],
        "waited_s": [round(total[rank].waited, 3) for rank in shown],
    }


def _operations(numbers: Numbers) -> list[OperationRates]:
    window = numbers.window()
    most = sorted(numbers.series.items(), key=lambda item: -item[1].took.seconds)[:MAX_OPERATIONS]
    return [_operation(key, series, numbers.bounds, window) for key, series in most]


def _operation(key: Key, series: Series, bounds: Sequence[float], window: int) -> OperationRates:
    took, slow, speed = series.took, series.took.exemplar, series.speed(window)
    algorithm = speed.bytes / speed.seconds if speed is not None and speed.seconds > 0 else None
    return {
        "operation": key.operation,
        "process_group": key.group,
        "group_size": key.group_size or None,
        "backend": key.backend,
        "dtype": key.dtype,
        "size": key.size,
        "calls": round(series.calls),
        "bytes": round(series.bytes),
        "seconds": round(took.seconds, 3),
        "mean_s": _mean(took),
        "delay_mean_s": _mean(series.delays),
        "device_mean_s": _mean(series.runs),
        "p99_s": _quantile(took.counts, bounds),
        "algorithm_bandwidth": _number(algorithm),
        "bus_bandwidth": _number(algorithm and algorithm * bus_factor(key.operation, key.group_size)),
        "slow": None
        if slow is None
        else {"seconds": _number(slow.value), "site": slow.site, "trace_id": slow.trace_id, "span_id": slow.span_id},
    }


def _mean(durations: Durations) -> float | None:
    """Mean seconds of a call. None: no duration is known."""
    count = sum(durations.counts)
    return _number(durations.seconds / count if count else None)


def _quantile(counts: Sequence[int], bounds: Sequence[float]) -> float | None:
    """Upper bound of the bucket that contains the quantile. None: it is beyond the last bound, or not known."""
    wanted, seen = QUANTILE * sum(counts), 0
    for bound, count in zip(bounds, counts, strict=False):
        seen += count
        if seen >= wanted > 0:
            return bound if math.isfinite(bound) else None
    return None


def _number(value: float | None) -> float | None:
    """Round to four significant digits, which is more than the measurements justify. JSON has no infinite numbers."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
