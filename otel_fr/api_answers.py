"""What the API answers, as types. /api/openapi.json is made from them and from their docstrings."""

from __future__ import annotations

from typing import Literal, TypedDict

from otel_fr.incident import CollectorIncidentData, IncidentHead

JobState = Literal["running", "incident", "slow", "silent", "failed", "ended", "stopped", "replaced"]
RankStateName = Literal["running", "silent", "unheard", "ended", "raised", "killed", "gone"]


class ErrorData(TypedDict):
    """Any answer but 200. ``error``: one sentence."""

    error: str


class LateRank(TypedDict):
    """The rank that others wait for most, if that is no chance.

    ``seconds``: how late it comes. ``share``: of the blocks of collectives in which it was late. ``waited``: share of
    the time that others waited.
    """

    rank: int
    process_group: str
    seconds: float
    share: float
    waited: float


class SlowestRank(TypedDict):
    """The rank that costs a job most, if it is the same again and again. ``waited``: share of the time."""

    rank: int
    process_group: str
    waited: float
    lost_per_step_s: float | None


class Rates(TypedDict):
    """What communication costs. null: not known.

    A collective counts once, sizes are as in nccl-tests, ``bus_bandwidth`` is in bytes per second. ``wait_share``: of
    the time that half of a group waited for its last rank. ``step_s``: seconds of a training step. All but the waits
    come with the ranks' metrics, every 15 s.
    """

    collectives_per_s: float | None
    bytes_per_s: float | None
    wait_share: float | None
    bus_bandwidth: float | None
    step_s: float | None


class LatestRates(Rates):
    """`Rates` of about the last minute."""

    slowest: SlowestRank | None


class RateIntervals(TypedDict):
    """`Rates` as lists, by 15 s of the last 15 minutes. ``at``: Unix time."""

    at: list[float]
    collectives_per_s: list[float | None]
    bytes_per_s: list[float | None]
    wait_share: list[float | None]
    bus_bandwidth: list[float | None]
    step_s: list[float | None]


class RankWaits(TypedDict):
    """Columns, of at most 2,048 ranks. Waits that have not ended count from the stall time on."""

    rank: list[int]
    came_last: list[int]
    waited_for_s: list[float]
    waited_s: list[float]


class SlowCall(TypedDict):
    """A slow call."""

    seconds: float | None
    site: str
    trace_id: str
    span_id: str


class OperationRates(TypedDict):
    """One kind of calls. null: not known."""

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
    """What the communication of a run costs. ``operations``: the 20 kinds of calls with the most time."""

    latest: LatestRates
    since_start: Rates
    intervals: RateIntervals
    ranks: RankWaits
    operations: list[OperationRates]


class _Over(TypedDict, total=False):
    is_finished: bool


class JobFacts(_Over):
    """A run.

    ``state``: ``slow`` has a straggler; ``stopped``: from outside, by its user or its scheduler; ``replaced``: by a
    newer attempt. ``hosts``: the first 4. ``lag``: collectives by which the last rank is behind. ``service``:
    ``service.name``. ``incidents``: ids of open causes. ``collector_page``: of a run that reports to another collector
    with the same ``--store``, that collector's page: ranks, rates and stacks are there. ``is_finished``: the run is
    over: 60 s after a good end, else an hour after the last telemetry.
    """

    id: str
    collector_page: str | None
    job: str
    job_title: str
    attempt: int
    run_id: str
    service: str | None
    state: JobState
    world_size: int | None
    hosts: list[str]
    lag: int
    late: LateRank | None
    rates: LatestRates
    incidents: list[str]
    first_heard_at: str | None
    last_heard_at: str | None


class Job(JobFacts):
    """`JobFacts` in the list. ``ranks``: how many are in each state. ``groups``: how many process groups there are."""

    ranks: dict[str, int]
    groups: int


class JobGroup(TypedDict):
    """A process group. Ranks as text: ``0-3,8-12:2``.

    ``lane``: its index in ``lanes``. ``enqueued``, ``completed``: lowest and highest number of its members.
    ``behind``: at most 64 ranks.
    """

    id: str
    name: str
    description: str
    lane: int
    size: int
    ranks: str
    enqueued: list[int]
    completed: list[int]
    behind: str
    behind_count: int


class RankColumns(TypedDict):
    """Ranks in columns: item I of each list is of rank ``rank[I]``.

    ``state``: ``silent``: no report for 2.5 s; ``unheard``: never reported. ``site``: line of code. ``how``: how it
    ended. ``idle_s``: seconds without progress. ``step``: of training. ``waits``: operation, sequence number, index of
    the group and seconds of its oldest call in flight. ``overdue``: kind, name, seconds and limit of a heartbeat or
    section past its limit. ``late``: in the group that waits for it most: index of the group, share of the blocks in
    which it was late, seconds, share of the time that others waited. ``tally``: how many are in each state.
    """

    rank: list[int]
    state: list[RankStateName]
    host: list[str]
    idle_s: list[float | None]
    site: list[str]
    how: list[str]
    waits: list[tuple[str, int, int | None, float] | None]
    step: list[int | None]
    overdue: list[tuple[str, str, float, float] | None]
    late: list[tuple[int, float, float, float] | None]
    tally: dict[str, int]


class Lane(TypedDict):
    """A column of the page's grid: groups that share no rank. Lists are as long as ``ranks.rank``; null: no group."""

    name: str
    group: list[int | None]
    enqueued: list[int | None]
    completed: list[int | None]


class JobDetail(JobFacts):
    """`JobFacts` with the ranks and process groups."""

    ranks: RankColumns
    groups: list[JobGroup]
    lanes: list[Lane]


class JobList(TypedDict):
    """Runs."""

    jobs: list[Job]


class AskedRanks(TypedDict):
    """``asked``: how many monitors."""

    asked: int


class PlaceOfRanks(TypedDict):
    """Ranks at the same place: as text, ``0-3,8-12:2``. ``frames``: outermost first."""

    ranks: str
    frames: list[str]


class AskedStacks(TypedDict):
    """Where ranks are. ``groups``: most ranks first, at most 256. ``not_answered``: ranks as text, ``0-3,8-12:2``."""

    asked_at: str | None
    groups: list[PlaceOfRanks]
    not_answered: str


class ListedIncident(CollectorIncidentData):
    """An incident in the list. ``consequence_count``: how many follow from it."""

    consequence_count: int


class IncidentList(TypedDict):
    """Incidents, oldest first."""

    incidents: list[ListedIncident]


class BriefIncidentList(TypedDict):
    """Incidents, oldest first, without stacks, call sites, values, files, waiting ranks, ranks of the group,
    ``nccl_ras`` and most places."""

    incidents: list[IncidentHead]


class IncidentDetail(CollectorIncidentData):
    """An incident in full.

    ``links``: by name: ``page``, ``runbook``, ``trace``, ``dashboard``, with ``--alertmanager`` also ``silence``.
    ``consequences``: ids. ``waiting_count``: ranks that wait in it or in a consequence.
    """

    links: dict[str, str]
    consequences: list[str]
    waiting_count: int
    job_url: str | None


class IncidentChange(TypedDict):
    """An event of the stream."""

    change: Literal["opened", "updated", "resolved"]
    incident: CollectorIncidentData
