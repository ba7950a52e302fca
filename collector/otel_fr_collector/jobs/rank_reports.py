"""What the collector keeps of a rank report (`otel_fr.rank_report`): interned calls and groups with their members."""

from __future__ import annotations

from dataclasses import dataclass, field

from otel_fr import identity, rank_report
from otel_fr.match import Ending, Group, Signature, ThreadException
from otel_fr_collector.jobs.bounded import Cache
from otel_fr_collector.jobs.calls import Interner, RankCall, state_of, stream_of

MAX_GROUP_RANKS = 65_536
"""Members of one group."""

_members: Cache[str, tuple[int, ...]] = Cache(1_000_000)
"""Member lists by their text: every rank of a group sends the same, and one tuple serves them all."""


@dataclass(slots=True)
class KeptGroupProgress:
    """The rank's progress in one group. ``group`` has no ranks if the report does not name them."""

    group: Group
    enqueued: int = 0
    completed: int = 0
    is_destroyed: bool = False


@dataclass(slots=True)
class KeptReport:
    """One rank's report; times in seconds, ``RankCall.enqueued_at`` on the clock of the ``now`` it was parsed with."""

    rank: int
    number: int
    stall: float = rank_report.DEFAULT_STALL_SECONDS
    groups: list[KeptGroupProgress] = field(default_factory=list)
    inflight: list[RankCall] = field(default_factory=list)
    inflight_more: int = 0
    failed: list[RankCall] = field(default_factory=list)
    last: RankCall | None = None
    idle: float | None = None
    stack: str = ""
    python_blocked: bool | None = None
    exception: str = ""
    exception_stack: str = ""
    exception_site: str = ""
    thread_exceptions: tuple[ThreadException, ...] = ()
    ending: Ending | None = None
    exit_code: int | None = None
    signal: int | None = None
    has_exited: bool = False
    is_exiting: bool = False
    exit_message: str = ""
    exit_site: str = ""
    site: str = ""
    file: str = ""


def parse_report(text: str, interner: Interner, *, now: float, wall: float) -> KeptReport:
    """Read a report.

    Args:
        now: the collector's monotonic clock at arrival; wall: the Unix time then.

    Raises:
        ValueError: as `otel_fr.rank_report.parse`, or a group has too many members.
    """
    given = rank_report.parse(text)
    rank = given.rank
    report = KeptReport(
        rank,
        given.number,
        stall=given.stall_s,
        groups=[_group(group) for group in given.groups],
        inflight=[_call(call, rank, interner, now, wall) for call in given.in_flight],
        inflight_more=given.in_flight_more,
        failed=[_call(call, rank, interner, now, wall) for call in given.failed],
        last=None if given.last is None else _call(given.last, rank, interner, now, wall),
        idle=given.idle_s,
        stack=given.stack,
        python_blocked=given.python_blocked,
        site=given.site,
        is_exiting=given.is_exiting,
        exit_message=given.exit_message,
        exit_site=given.exit_site,
        file=given.file,
        thread_exceptions=tuple(
            [ThreadException(item.thread, _exception_text(item), item.site) for item in given.thread_exceptions]
        ),
    )
    if given.exception is not None:
        _add_exception(report, given.exception)
    if given.exit is not None:
        _add_exit(report, given.exit)
    return report


def _add_exception(report: KeptReport, given: rank_report.ReportedException) -> None:
    report.exception = _exception_text(given)
    report.exception_stack = given.stack
    report.exception_site = given.site
    report.ending = Ending.RAISED


def _exception_text(given: rank_report.ReportedException) -> str:
    exception = f"{given.type}: {given.message}" if given.message else given.type
    return exception[: rank_report.MAX_EXCEPTION]


def _add_exit(report: KeptReport, given: rank_report.ReportedExit) -> None:
    report.has_exited = True
    report.exit_code = given.code if given.is_known else None
    report.signal = given.signal or None
    if given.signal:
        report.ending = Ending.KILLED
    elif given.is_clean or report.exit_code == 0:
        report.ending = Ending.CLEAN
    elif report.exception or report.exit_code is not None:
        report.ending = Ending.RAISED
    else:
        report.ending = Ending.GONE


def _ranks(text: str) -> tuple[int, ...]:
    known = _members.young.get(text)
    if known is None:
        ranks = tuple(identity.decode_ranks(text, limit=MAX_GROUP_RANKS))
        known = _members.put(text, ranks, 1 + len(ranks) + len(text) // 32)
    return known


def _group(given: rank_report.ReportedGroup) -> KeptGroupProgress:
    group = Group(given.id, given.name, given.description, _ranks(given.ranks))
    return KeptGroupProgress(group, given.enqueued, given.completed, given.is_destroyed)


def _call(given: rank_report.ReportedCall, rank: int, interner: Interner, now: float, wall: float) -> RankCall:
    operation, peer, age, error = given.operation, given.peer, given.age_s, given.error
    signature = interner.signature(
        Signature(
            operation=operation,
            input_sizes=given.input_sizes,
            output_sizes=given.output_sizes,
            input_dtypes=given.input_dtypes,
            output_dtypes=given.output_dtypes,
            reduce_op=given.reduce_op,
            root=given.root,
            peer=peer,
            tag=given.tag,
            input_splits=given.input_splits,
            output_splits=given.output_splits,
            any_source=given.any_source or (operation == "recv" and peer is None),
        )
    )
    # A call that no thread waits for does not age.
    waited = None if given.is_posted else age if given.wait_s is None else given.wait_s
    return RankCall(
        rank=rank,
        record=given.record,
        group=given.group,
        stream=stream_of(given.stream, operation),
        sequence_id=given.sequence,
        signature=signature,
        state=state_of(given.state, error),
        pair_index=given.pair_index,
        site=interner.text(given.site),
        error=error,
        timeout=None if given.timeout_ms is None else given.timeout_ms / 1_000,
        duration=given.duration_s,
        gap=given.gap_s,
        enqueued_wall=None if age is None else wall - age,
        enqueued_at=None if waited is None else now - waited,
        age=0.0 if given.is_posted else None,
    )
