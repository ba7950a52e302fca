"""The rank report: what a rank monitor sends about its rank, as JSON in the body of an OTLP event.

This is the only definition of its keys, for the monitor that builds reports, the collector that parses them, and the
flight-recorder files that hold some of their sections. Each key is a field with its type, bounds and meaning.
docs/reference/rank-report.md lists them, and a test compares that list with the fields here.

Versions: ``v`` is an integer. A reader takes its own `VERSION` and ignores unknown keys, so a new optional key needs no
new version. A change that an older reader would misunderstand needs one.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field
from msgspec.structs import replace

from otel_fr.rank_report.bounds import (
    DEFAULT_INTERVAL,
    DEFAULT_PEER_TIMEOUT,
    DEFAULT_STALL_SECONDS,
    MAX_ACTIVITIES,
    MAX_CALLS,
    MAX_DECIDED,
    MAX_DECISIONS,
    MAX_DOING,
    MAX_EXCEPTION,
    MAX_FETCHED,
    MAX_GROUP_ID,
    MAX_GROUPS,
    MAX_LENGTH,
    MAX_LINES,
    MAX_LINES_GROUPS,
    MAX_LOOPS,
    MAX_NUMBER,
    MAX_PATH,
    MAX_PATTERNS,
    MAX_RANK,
    MAX_ROUND_TRIPS,
    MAX_STACK,
    MAX_THREAD_EXCEPTIONS,
    Count,
    Integer,
    Name,
    Names,
    Seconds,
    Stack,
)
from otel_fr.rank_report.fitting import fitted
from otel_fr.rank_report.ras import ReportedCommunicator, ReportedFact, ReportedRas
from otel_fr.rank_report.section import Section, names_of, section_of, sections_of
from otel_fr.rank_report.sections import (
    Calls,
    DropCounts,
    ReportedActivity,
    ReportedCall,
    ReportedDecision,
    ReportedException,
    ReportedExit,
    ReportedGroup,
    ReportedLines,
    ReportedLoop,
    ReportedPattern,
    ReportedRange,
    ReportedRoundTrip,
)

__all__ = [
    "DEFAULT_INTERVAL",
    "DEFAULT_PEER_TIMEOUT",
    "DEFAULT_STALL_SECONDS",
    "MAX_ACTIVITIES",
    "MAX_CALLS",
    "MAX_DECIDED",
    "MAX_DECISIONS",
    "MAX_DOING",
    "MAX_EXCEPTION",
    "MAX_FETCHED",
    "MAX_GROUPS",
    "MAX_GROUP_ID",
    "MAX_LENGTH",
    "MAX_LINES",
    "MAX_LINES_GROUPS",
    "MAX_LOOPS",
    "MAX_NUMBER",
    "MAX_PATH",
    "MAX_PATTERNS",
    "MAX_RANK",
    "MAX_ROUND_TRIPS",
    "MAX_STACK",
    "MAX_THREAD_EXCEPTIONS",
    "SECTIONS",
    "VERSION",
    "DropCounts",
    "RankReport",
    "ReportedActivity",
    "ReportedCall",
    "ReportedCommunicator",
    "ReportedDecision",
    "ReportedException",
    "ReportedExit",
    "ReportedFact",
    "ReportedGroup",
    "ReportedLines",
    "ReportedLoop",
    "ReportedPattern",
    "ReportedRange",
    "ReportedRas",
    "ReportedRoundTrip",
    "Section",
    "build",
    "fitted",
    "names_of",
    "parse",
    "section_of",
    "sections_of",
    "to_object",
]

VERSION: Final = 1
"""The version that `build` writes and `parse` accepts."""
VERSION_KEY: Final = "v"


class RankReport(Section, frozen=True, tag_field=VERSION_KEY, tag=VERSION):
    """One report of one rank. Times are seconds before the report was built."""

    rank: Annotated[int, Meta(ge=0, le=MAX_RANK, description="global rank")]
    number: Annotated[Count, Meta(description="report number, rising; older reports are ignored")] = field(name="n")
    groups: Annotated[tuple[ReportedGroup, ...], Meta(max_length=MAX_GROUPS, description="the rank's process groups")]
    stall_s: Annotated[
        float, Meta(ge=0.1, le=86_400, title="seconds", description="`OTEL_FR_STALL_SECONDS`, if it is not 5")
    ] = DEFAULT_STALL_SECONDS
    in_flight: Annotated[Calls, Meta(description="calls in flight, oldest first, at most 64")] = field(
        name="inflight", default=()
    )
    in_flight_more: Annotated[Count, Meta(description="how many more are in flight")] = field(
        name="inflight_more", default=0
    )
    failed: Annotated[Calls, Meta(description="calls that failed, newest last, at most 16")] = ()
    idle_s: Annotated[Seconds | None, Meta(description="since its last call was enqueued or ended")] = None
    starved_s: Annotated[
        Seconds, Meta(description="of these, for how long its main thread has waited for a processor")
    ] = 0.0
    dropped: Annotated[DropCounts | None, Meta(description="what was lost")] = None
    last: Annotated[ReportedCall | None, Meta(description="the newest call")] = None
    python_blocked: Annotated[
        bool | None,
        Meta(description="true: the rank did not answer when asked for stacks (GIL held, or stopped)"),
    ] = None
    site: Annotated[
        Name, Meta(description="where its thread was when stacks were last taken: `file:line function`")
    ] = ""
    stack: Annotated[Stack, Meta(description="stacks, the rank's thread first, native ones last")] = ""
    exit: Annotated[ReportedExit | None, Meta(description="how the process ended")] = None
    exception: Annotated[
        ReportedException | None, Meta(description="the main thread's uncaught exception, which ends the rank")
    ] = None
    thread_exceptions: Annotated[
        tuple[ReportedException, ...],
        Meta(max_length=MAX_THREAD_EXCEPTIONS, description="uncaught exceptions of other threads, oldest first"),
    ] = ()
    file: Annotated[str, Meta(max_length=MAX_PATH, description="path of the flight-recorder file")] = ""
    reason: Annotated[Name, Meta(description="why the file was written, such as `stall`")] = ""
    error: Annotated[Name, Meta(description="why the file could not be written")] = ""
    is_exiting: Annotated[bool, Meta(description="true: the rank's interpreter ends, or has ended")] = field(
        name="exiting", default=False
    )
    exit_message: Annotated[
        Name, Meta(description="passed to `sys.exit`: text, or the exception or signal handled")
    ] = ""
    exit_site: Annotated[Name, Meta(description="where it called `sys.exit` with an error: `file:line function`")] = ""
    records_creations: Annotated[bool, Meta(description="true: the rank records the creation of process groups")] = (
        field(name="creations", default=False)
    )
    peer_timeout: Annotated[
        float, Meta(ge=1, le=86_400, title="seconds", description="`OTEL_FR_PEER_TIMEOUT`, if it is not 5")
    ] = field(name="peer_s", default=DEFAULT_PEER_TIMEOUT)
    activity: Annotated[
        tuple[ReportedActivity, ...],
        Meta(max_length=MAX_ACTIVITIES, description="heartbeats and sections, at most 16"),
    ] = ()
    step: Annotated[Integer | None, Meta(description="number of the training step that has begun last")] = None
    step_s: Annotated[Seconds | None, Meta(description="since it began")] = None
    on_hang: Annotated[Name, Meta(description="`kill`: the monitor ended the rank because a limit passed")] = ""
    doing: Annotated[
        str,
        Meta(
            max_length=MAX_DOING,
            description="what it did when stacks were last taken: `reading /data/x.bin (pipe_read)`",
        ),
    ] = ""
    running_here: Annotated[
        Name, Meta(description="ranks that run on the monitor's machine, such as `0-7`, if several")
    ] = field(name="here", default="")
    decisions: Annotated[
        tuple[ReportedDecision, ...],
        Meta(max_length=MAX_DECISIONS, description="decisions of the program, in order, at most 48"),
    ] = ()
    lines: Annotated[
        tuple[ReportedLines, ...],
        Meta(
            max_length=MAX_LINES_GROUPS,
            description="where it made its latest collectives; with stacks, an exception or the rank's end only",
        ),
    ] = ()
    left_loops: Annotated[
        tuple[ReportedLoop, ...],
        Meta(
            max_length=MAX_LOOPS,
            description="loops of the program in which it made its latest calls, and which it had left when stacks were"
            " last taken; the latest first, at most 4",
        ),
    ] = field(name="left", default=())
    patterns: Annotated[
        tuple[ReportedPattern, ...],
        Meta(
            max_length=MAX_PATTERNS,
            description="of a rank that stands still: messages that it made equally often in each step, at most 32",
        ),
    ] = ()
    interval_s: Annotated[
        float, Meta(ge=1, le=60, title="seconds", description="seconds to the next report at the latest, if not 1")
    ] = field(name="every_s", default=DEFAULT_INTERVAL)
    is_brief: Annotated[bool, Meta(description="true: the report leaves out texts of groups, new calls and `last`")] = (
        field(name="brief", default=False)
    )
    unlisted_s: Annotated[
        Seconds | None, Meta(description="since the rank began to wait in a call that the report leaves out")
    ] = None
    sampled: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="share of the traces that are sent, if not 1")
    ] = None
    fetched: Annotated[ReportedRange | None, Meta(description="the calls that the collector requested")] = None
    ras: Annotated[ReportedRas | None, Meta(description="answer of NCCL's RAS")] = None
    addresses: Annotated[
        Names, Meta(description="of the rank's own TCP connections; only where others must know whose they are")
    ] = ()
    unreached: Annotated[
        Names,
        Meta(description="peers of these, such as `10.0.0.7:41234`, that had not acknowledged data sent four times"),
    ] = ()
    round_trips: Annotated[
        tuple[ReportedRoundTrip, ...],
        Meta(
            max_length=MAX_ROUND_TRIPS,
            description="hosts to which a round trip takes 0.1 s or longer, for 20 s or longer, at most 8",
        ),
    ] = ()


SECTIONS: Final[dict[str, type[Section]]] = {
    "report": RankReport,
    "GROUP": ReportedGroup,
    "CALL": ReportedCall,
    "EXIT": ReportedExit,
    "EXCEPTION": ReportedException,
    "ACTIVITY": ReportedActivity,
    "DECISION": ReportedDecision,
    "LINES": ReportedLines,
    "LOOP": ReportedLoop,
    "PATTERN": ReportedPattern,
    "RANGE": ReportedRange,
    "ROUND_TRIP": ReportedRoundTrip,
    "RAS": ReportedRas,
    "COMMUNICATOR": ReportedCommunicator,
    "FACT": ReportedFact,
    "DROPPED": DropCounts,
}
"""Sections by their name in docs/reference/rank-report.md. That document leaves out the three sections of RAS."""

_UNREAD: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RankReport).decode


def build(report: RankReport) -> str:
    """Return the report as JSON text that `parse` accepts. Values out of bounds are cut or left out (`fitted`)."""
    try:
        text = _encode(report)
        _decode(text)
    except _UNREAD:
        text = _encode(fitted(report))
    if len(text) > MAX_LENGTH:
        text = _encode(_shortened(fitted(report)))
    return text.decode()


def _shortened(report: RankReport) -> RankReport:
    """Return the report without the long parts of each group and call."""

    def short(calls: tuple[ReportedCall, ...]) -> tuple[ReportedCall, ...]:
        none: dict[str, Any] = {"input_sizes": (), "input_dtypes": (), "output_sizes": (), "output_dtypes": ()}
        return tuple([replace(call, input_splits=None, output_splits=None, new_ranks="", **none) for call in calls])

    groups = [replace(group, name="", description="", ranks="", backend="") for group in report.groups]
    return replace(
        report, groups=tuple(groups), in_flight=short(report.in_flight), failed=short(report.failed), fetched=None
    )


def to_object(section: Section) -> dict[str, Any]:
    """Return one of `SECTIONS` as an object for JSON."""
    found: dict[str, Any] = msgspec.to_builtins(fitted(section))
    return found


def parse(body: str) -> RankReport:
    """Read a report.

    Raises:
        ValueError: it is not JSON, not a report of the supported version, or a value is out of its bounds. The text
            says which.
    """
    if len(body) > MAX_LENGTH:
        raise ValueError(f"report of more than {MAX_LENGTH} characters")
    try:
        return _decode(body)
    except _UNREAD as error:
        raise ValueError(_refusal(body, error)) from error


class _Versioned(msgspec.Struct):
    v: int


def _refusal(body: str, error: Exception) -> str:
    """Return why a report cannot be read."""
    if isinstance(error, RecursionError):
        return "report is nested too deep"
    if not isinstance(error, msgspec.ValidationError):
        return f"report is not JSON: {error}"
    try:
        version = msgspec.json.decode(body, type=_Versioned).v
    except _UNREAD:
        version = VERSION
    if version > VERSION:
        return f"rank report of version {version}, but only version {VERSION} is understood: upgrade the collector"
    return f"unusable rank report: {error}"
