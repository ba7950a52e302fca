"""What the API answers, as types. /api/openapi.json is made from them and from their docstrings.

The type with most keys in common describes the keys that a docstring leaves out.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from otel_fr.incident import CollectorIncidentData, IncidentHead
from otel_fr.rate_answers import LatestRates

JobState = Literal["running", "incident", "slow", "silent", "failed", "ended", "stopped", "replaced"]
RankStateName = Literal["running", "silent", "unheard", "ended", "stopped", "raised", "killed", "gone"]
NodeRankState = Literal[
    "culprit",
    "raised",
    "killed",
    "gone",
    "slow",
    "behind",
    "silent",
    "unheard",
    "waiting",
    "stopped",
    "ended",
    "running",
]


class ErrorData(TypedDict):
    """Any answer but 200.

    Attributes:
        error: one sentence.
    """

    error: str


class LateRank(TypedDict):
    """The rank that others wait for most, if that is no chance.

    Attributes:
        rank: its global number.
        process_group: the name of a process group, or its description where it has one.
        seconds: how late it comes.
        share: of the blocks of collectives in which it was late.
        waited: share of the time that others waited for it.
    """

    rank: int
    process_group: str
    seconds: float
    share: float
    waited: float


class _Over(TypedDict, total=False):
    is_finished: bool


class JobFacts(_Over):
    """A run.

    Attributes:
        id: names the run in URLs.
        collector_page: page of another collector with the same `--store`, if the run reports to that one: ranks, rates
            and stacks are there. null: it reports to this one.
        job: its name.
        job_title: what the job is called for a reader.
        attempt: 0, and one more with each restart.
        run_id: tells runs of one job apart.
        service: `service.name`.
        state: `slow` has a straggler; `stopped`: from outside, by its user or its scheduler; `replaced`: by a newer
            attempt.
        world_size: number of ranks; null: not known.
        hosts: the first 4.
        lag: collectives by which the last rank is behind.
        late: null: no rank is.
        rates: of the last minute.
        incidents: ids of firing causes.
        first_heard_at, last_heard_at: RFC 3339, UTC.
        is_finished: the run is over: 60 s after a good end, else an hour after the last telemetry.
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
    """`JobFacts` in the list.

    Attributes:
        ranks: how many are in each state.
        groups: how many process groups there are.
    """

    ranks: dict[str, int]
    groups: int


class JobGroup(TypedDict):
    """A process group.

    Attributes:
        id: 16 hex digits.
        name: in c10d.
        description: `group_desc`; empty: none.
        lane: its index in `lanes`.
        size: number of members.
        ranks: as text: `0-3,8-12:2`.
        enqueued, completed: lowest and highest number of collectives of its members.
        behind: at most 64 ranks, as text.
        behind_count: how many are.
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
    """Ranks in columns: item I of each list is of rank `rank[I]`.

    Attributes:
        rank: global numbers.
        state: `silent`: no report for 2.5 s; `unheard`: never reported; `stopped`: ended by its user or
            its launcher.
        host: empty: not known.
        idle_s: seconds without progress.
        site: line of code, `file:line function`.
        how: how it ended.
        waits: operation, sequence number, index of the group and seconds of its oldest call in flight.
        step: of training.
        overdue: kind, name, seconds and limit of a heartbeat or section past its limit.
        late: in the group that waits for it most: index of the group, share of the blocks in which it was late,
            seconds, share of the time that others waited.
        tally: how many are in each state.
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
    """A column of the page's table of ranks: groups that share no rank. Lists are as long as `ranks.rank`.

    Attributes:
        name: the groups' name or description.
        group: index in `groups`; null: no group.
        enqueued, completed: collectives.
    """

    name: str
    group: list[int | None]
    enqueued: list[int | None]
    completed: list[int | None]


class WaitingRanks(TypedDict):
    """Ranks in one call; in a job of more than 1,024 ranks, for 3 s or longer. Each counts in its oldest call.

    Attributes:
        operation: such as `all_reduce`; `collective`: the ranks have not told.
        sequence_id: its number in its group.
        group: index in `groups`; null: not known.
        seconds: for which the first of them has been in it.
        count: how many ranks.
        ranks: the first 64 ranges of them, as text.
    """

    operation: str
    sequence_id: int
    group: int | None
    seconds: float
    count: int
    ranks: str


class SlowLink(TypedDict):
    """Two hosts between which a packet and its acknowledgement take 0.1 s or longer.

    Attributes:
        hosts: names of both.
        seconds: of the round trip, as the kernel of one of them measures it.
    """

    hosts: list[str]
    seconds: float


class NodeRange(TypedDict):
    """Hosts that follow each other, by their lowest ranks, and whose ranks are in the same states.

    Attributes:
        first, last: names of hosts; empty: not known.
        hosts: how many.
        ranks: as text.
        states: how many of the ranks are in each state. `culprit`, `slow`: of an open incident; `waiting`: for 3 s or
            longer in one call; `behind`: in no call that others wait in.
    """

    first: str
    last: str
    hosts: int
    ranks: str
    states: dict[NodeRankState, int]


class JobDetail(JobFacts):
    """`JobFacts` with the ranks and process groups.

    Attributes:
        ranks: all of them; of more than 1,024, the ranks that are asked for and 256 that differ from the rest.
        groups: all of them; of such a job, the groups of these ranks, and the 200 whose ranks differ most.
        group_count: how many there are.
        lanes: the groups, by columns.
        steps: lowest and highest training step of its ranks; null: not known.
        waiting: the calls that most ranks are in, at most 64.
        slow_links: slowest first, at most 16.
        nodes: all hosts of a job of more than 1,024 ranks, those whose ranks differ first; at most 1,024 items:
            the last one has all the rest.
    """

    ranks: RankColumns
    groups: list[JobGroup]
    group_count: int
    lanes: list[Lane]
    steps: list[int] | None
    waiting: list[WaitingRanks]
    slow_links: list[SlowLink]
    nodes: list[NodeRange]


class JobList(TypedDict):
    """Runs.

    Attributes:
        jobs: runs with firing incidents first, then the newest.
    """

    jobs: list[Job]


class AskedRanks(TypedDict):
    """What was asked.

    Attributes:
        asked: how many monitors.
    """

    asked: int


class PlaceOfRanks(TypedDict):
    """Ranks at the same place.

    Attributes:
        ranks: as text: `0-3,8-12:2`.
        frames: `file:line function`, outermost first.
    """

    ranks: str
    frames: list[str]


class AskedStacks(TypedDict):
    """Where ranks are.

    Attributes:
        asked_at: RFC 3339, UTC.
        groups: most ranks first, at most 256.
        not_answered: ranks as text: `0-3,8-12:2`.
    """

    asked_at: str | None
    groups: list[PlaceOfRanks]
    not_answered: str


class ListedIncident(CollectorIncidentData):
    """An incident in the list.

    Attributes:
        consequence_count: how many follow from it.
    """

    consequence_count: int


class IncidentList(TypedDict):
    """Incidents, oldest first.

    Attributes:
        incidents: at most 4 MiB: the oldest are left out.
    """

    incidents: list[ListedIncident]


class BriefIncidentList(TypedDict):
    """Incidents, oldest first, without stacks, call sites, values, files, waiting ranks, ranks of the group,
    `nccl_ras` and most places.
    """

    incidents: list[IncidentHead]


class IncidentDetail(CollectorIncidentData):
    """An incident in full.

    Attributes:
        links: by name: `page`, `runbook`, `trace`, `dashboard`, with `--alertmanager` also `silence`.
        consequences: ids of the incidents that follow from it.
        waiting_count: ranks that wait in it or in a consequence.
        job_url: of its run in this API; null: the run is not kept.
    """

    links: dict[str, str]
    consequences: list[str]
    waiting_count: int
    job_url: str | None


class BriefIncidentDetail(IncidentHead):
    """An incident without what grows with the ranks that wait: call sites, stacks and places of 16 culprits.

    Attributes:
        waiting: who waits, as text: `0-3,8-12:2`.
        links: as in `IncidentDetail`.
        consequences: ids of the incidents that follow from it.
        waiting_count: ranks that wait in it or in a consequence.
        job_url: of its run in this API; null: the run is not kept.
    """

    call_sites: dict[str, str]
    stacks: dict[str, str]
    waiting: str
    links: dict[str, str]
    consequences: list[str]
    waiting_count: int
    job_url: str | None


class IncidentChange(TypedDict):
    """An event of the stream.

    Attributes:
        change: what happened to it.
        incident: as it is now.
    """

    change: Literal["opened", "updated", "resolved"]
    incident: CollectorIncidentData
