"""What the API answers about the communication of a job, as types; see `otel_fr.api_answers`."""

from __future__ import annotations

from typing import TypedDict


class SlowestRank(TypedDict):
    """The rank that costs a job most, if it is the same again and again.

    Attributes:
        waited: share of the time that others wait for it.
        over_s: seconds that this was measured over.
        lost_per_step_s: seconds of each training step that others wait for it.
    """

    rank: int
    process_group: str
    waited: float
    over_s: float
    lost_per_step_s: float | None


class Rates(TypedDict):
    """What communication costs. null: not known. All but the waits come with the ranks' metrics, every 15 s.

    Attributes:
        collectives_per_s: a collective counts once, not once for each rank.
        bytes_per_s: sizes as in nccl-tests.
        wait_share: share of the time that half of a group waited for its last rank.
        bus_bandwidth: bytes a second.
        step_s: seconds of a training step.
    """

    collectives_per_s: float | None
    bytes_per_s: float | None
    wait_share: float | None
    bus_bandwidth: float | None
    step_s: float | None


class LatestRates(Rates):
    """`Rates` of about the last minute.

    Attributes:
        slowest: null: no rank is the slowest again and again.
    """

    slowest: SlowestRank | None


class RateIntervals(TypedDict):
    """`Rates` as lists, by 15 s of the last 15 minutes.

    Attributes:
        at: Unix time.
    """

    at: list[float]
    collectives_per_s: list[float | None]
    bytes_per_s: list[float | None]
    wait_share: list[float | None]
    bus_bandwidth: list[float | None]
    step_s: list[float | None]


class RankWaits(TypedDict):
    """Columns, of at most 2,048 ranks. Waits that have not ended count from the stall time on.

    Attributes:
        rank: global numbers.
        came_last: in how many collectives.
        waited_for_s: seconds that half of a group waited for it.
        waited_s: seconds that it waited for others.
    """

    rank: list[int]
    came_last: list[int]
    waited_for_s: list[float]
    waited_s: list[float]


class SlowCall(TypedDict):
    """A slow call.

    Attributes:
        seconds: from enqueueing it to its end.
        site: `file:line function`.
        trace_id: 32 hex digits: the trace with all ranks' spans of a collective.
        span_id: 16 hex digits.
    """

    seconds: float | None
    site: str
    trace_id: str
    span_id: str


class OperationRates(TypedDict):
    """One kind of calls. null: not known.

    Attributes:
        operation: its name in `torch.distributed`.
        group_size: number of members.
        backend: `nccl`, `gloo`, ...
        dtype: of the tensors.
        size: upper bound of the size of a call; `larger`: than the largest bound.
        calls, bytes: of all ranks.
        seconds: from enqueueing the calls to their ends, of all ranks.
        mean_s: seconds of a call.
        delay_mean_s: of these, in the queue of the device.
        device_mean_s: of these, on the device.
        p99_s: 99 % of the calls took at most so long.
        algorithm_bandwidth: bytes a second, as in nccl-tests.
        slow: the latest slow call.
    """

    operation: str
    process_group: str
    group_size: int | None
    backend: str
    dtype: str
    size: str
    calls: int
    bytes: int
    seconds: float
    mean_s: float | None
    delay_mean_s: float | None
    device_mean_s: float | None
    p99_s: float | None
    algorithm_bandwidth: float | None
    bus_bandwidth: float | None
    slow: SlowCall | None


class JobRates(TypedDict):
    """What the communication of a run costs.

    Attributes:
        latest: the last minute.
        since_start: since the run began.
        intervals: the last 15 minutes.
        ranks: who is waited for.
        operations: the 20 kinds of calls with the most time.
    """

    latest: LatestRates
    since_start: Rates
    intervals: RateIntervals
    ranks: RankWaits
    operations: list[OperationRates]
