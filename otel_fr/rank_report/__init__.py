"""The rank report: what a rank monitor sends about its rank, as JSON in the body of an OTLP event.

The one definition of its keys, for the monitor that builds reports and the collector that parses them:
each key stands once, as the `Key` of a field, with its form, bounds and meaning. docs/reference/rank-report.md lists
them, and a test compares that list with the fields here. The ranks of a group
stay text here (`otel_fr.identity.encode_ranks`), because the collector decodes each different text once for all ranks.

Versions: ``v`` is an integer. A reader takes 1 to its own `VERSION` and ignores keys it does not know, so a
new optional key needs no new version. A change that an older reader would misunderstand needs one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from otel_fr.encodable import load_json
from otel_fr.rank_report.forms import (
    COUNT,
    INTEGER,
    MAX_NAME,
    MILLISECONDS,
    NAME,
    NAMES,
    OPTIONAL_INTEGER,
    SECONDS,
    SIZES,
    SPLITS,
    Exact,
    Form,
    Json,
    Key,
    Sizes,
    flag,
    keys_of,
    object_of,
    optional_text,
    read_number,
    reader_of,
    text,
)
from otel_fr.rank_report.ras import ReportedCommunicator, ReportedFact, ReportedRas

_T = TypeVar("_T")

VERSION: Final = 1
"""The version that is built, and the newest that is understood."""
VERSION_KEY: Final = "v"

MAX_LENGTH: Final = 4 << 20
"""Characters of a report."""
MAX_RANK: Final = 1_000_000
MAX_NUMBER: Final = 2**63 - 1
"""Of a report."""
MAX_GROUPS: Final = 4_096
MAX_GROUP_ID: Final = 256
"""Characters; otel-fr's group ids have 16."""
MAX_CALLS: Final = 64
"""Calls in each list of a report."""
MAX_FINGERPRINT: Final = 129
"""Integers of a fingerprint: of at most 64 numbers."""
MAX_FETCHED: Final = 32
"""Sequence numbers of a range whose calls are reported themselves; of more, their fingerprint is."""
MAX_STACK: Final = 65_536
"""Characters kept of a stack; a hundred frames are under 20,000."""
MAX_EXCEPTION: Final = 16_384
"""Characters kept of an exception's type and of its message."""
MAX_THREAD_EXCEPTIONS: Final = 4
"""As many as a ring holds."""
MAX_ACTIVITIES: Final = 16
"""Open sections of a report, the longest open first, and the heartbeat."""
MAX_DECISIONS: Final = 48
"""Runs of equal decisions of a report; each name has its newest ones."""
MAX_DECIDED: Final = 120
"""Characters of a decision's name and of its value."""
MAX_DOING: Final = 512
"""Characters kept of what a rank is doing."""
MAX_PATH: Final = 4_096
"""Linux's PATH_MAX."""

DEFAULT_STALL_SECONDS: Final = 5.0
"""Of a report that does not say it."""
STALL_SECONDS: Final = (0.1, 86_400.0)
"""Least and greatest stall time; others are raised or lowered to these."""
DEFAULT_INTERVAL: Final = 1.0
"""Of a report that does not say it."""
INTERVALS: Final = (1.0, 60.0)
"""Least and greatest; others are raised or lowered to these."""
DEFAULT_PEER_TIMEOUT: Final = 5.0
"""Of a report that does not say it."""
PEER_TIMEOUTS: Final = (1.0, 86_400.0)
"""Least and greatest; others are raised or lowered to these."""


def _seconds_within(default: float, bounds: tuple[float, float]) -> Form:
    def read(value: object) -> float:
        return min(max(read_number(value) or default, bounds[0]), bounds[1])

    return Form(read, default, "seconds", Exact(float, *bounds))


_STALL_SECONDS = _seconds_within(DEFAULT_STALL_SECONDS, STALL_SECONDS)
_PEER_TIMEOUT = _seconds_within(DEFAULT_PEER_TIMEOUT, PEER_TIMEOUTS)
_INTERVAL = _seconds_within(DEFAULT_INTERVAL, INTERVALS)
_SHARE = SECONDS._replace(description="number")
_STACK = text(MAX_STACK)


class ReportedCall(NamedTuple):
    """One call of the rank (CALL in docs/reference/rank-report.md)."""

    group: Annotated[str, Key("g", text(MAX_GROUP_ID), "id of the process group")]
    stream: Annotated[str, Key("k", NAME, "`collective`, `p2p`, `monitored_barrier` or `group`")]
    sequence: Annotated[int, Key("seq", INTEGER, "sequence number in that stream of the group")]
    op_id: Annotated[int, Key("op_id", INTEGER, "PyTorch's op id in the group")]
    record: Annotated[int, Key("rec", INTEGER, "calls that the rank enqueued before this one")]
    pair_index: Annotated[int, Key("i", INTEGER, "sends and receives: pair index")]
    operation: Annotated[str, Key("op", NAME, "name in `torch.distributed`")]
    backend: Annotated[str, Key("be", NAME, "backend that ran the call")]
    input_sizes: Annotated[Sizes, Key("in", SIZES, "shapes of the inputs; the first 256")]
    input_dtypes: Annotated[tuple[str, ...], Key("idt", NAMES, "dtypes of the inputs; the first 256")]
    output_sizes: Annotated[Sizes, Key("out", SIZES, "shapes of the outputs; the first 256")]
    output_dtypes: Annotated[tuple[str, ...], Key("odt", NAMES, "dtypes of the outputs; the first 256")]
    input_splits: Annotated[tuple[int, ...] | None, Key("isp", SPLITS, "of all_to_all_single; null: even")]
    output_splits: Annotated[tuple[int, ...] | None, Key("osp", SPLITS, "of all_to_all_single; null: even")]
    reduce_op: Annotated[str | None, Key("ro", optional_text(MAX_NAME), "reduce op, lower case")]
    root: Annotated[int | None, Key("root", OPTIONAL_INTEGER, "global rank")]
    peer: Annotated[int | None, Key("peer", OPTIONAL_INTEGER, "global rank")]
    tag: Annotated[int | None, Key("tag", OPTIONAL_INTEGER, "of a send or receive")]
    state: Annotated[str, Key("st", NAME, "`scheduled`, `completed`, `failed` or `unknown`")]
    timeout_ms: Annotated[float | None, Key("timeout_ms", MILLISECONDS, "the call's timeout")]
    age_s: Annotated[float | None, Key("age_s", SECONDS, "since the call was enqueued")]
    site: Annotated[str, Key("site", NAME, "call site: `file:line function`")]
    any_source: Annotated[bool, Key("any", flag(False), "true: a receive from any source", optional=True)] = False
    is_posted: Annotated[
        bool,
        Key(
            "posted",
            flag(False),
            "true: no thread waits for this send or receive, or the device has not begun the call",
            optional=True,
        ),
    ] = False
    wait_s: Annotated[
        float | None,
        Key(
            "wait_s",
            SECONDS,
            "such a call: since a thread waits for it, or the device began it",
            optional=True,
        ),
    ] = None
    duration_s: Annotated[
        float | None, Key("dur_s", SECONDS, "from enqueueing to the end, if the call has ended", optional=True)
    ] = None
    gap_s: Annotated[
        float | None,
        Key("gap_s", SECONDS, "from the end of the previous call to its enqueueing", optional=True),
    ] = None
    error: Annotated[
        str | None,
        Key("err", optional_text(MAX_NAME), "of a failed call: `timeout` or `collective_failed`", optional=True),
    ] = None
    new_name: Annotated[
        str | None, Key("ng", optional_text(MAX_NAME), "name of the process group that it creates", optional=True)
    ] = None
    new_description: Annotated[str, Key("ngd", NAME, "that group's description", optional=True)] = ""
    new_ranks: Annotated[
        str,
        Key("ngr", text(MAX_LENGTH), "that group's members, such as `0-3,8-12:2`", optional=True),
    ] = ""
    awaits_all: Annotated[
        bool, Key("nga", flag(False), "true: every rank of the group is waited for, not only these", optional=True)
    ] = False
    run_s: Annotated[float | None, Key("run_s", SECONDS, "time on the device, if known", optional=True)] = None
    is_queued: Annotated[
        bool,
        Key("queued", flag(False), "true: its device has not begun it; absent: it may have", optional=True),
    ] = False


_GROUP_ID = "id"


def _read_fingerprint(value: object) -> tuple[int, ...]:
    """A list of integers from 0; what is none is empty."""
    if not isinstance(value, list) or len(value) > MAX_FINGERPRINT:
        return ()
    return tuple(value) if all(type(item) is int and 0 <= item < 2**63 for item in value) else ()


_FINGERPRINT = Form(_read_fingerprint, (), "list of integers", COUNT.exact._replace(lists=(MAX_FINGERPRINT,)))


class ReportedGroup(NamedTuple):
    """The rank's progress in one process group."""

    id: Annotated[str, Key(_GROUP_ID, text(MAX_GROUP_ID), "`identity.group_id`; a group without one is ignored")]
    name: Annotated[str, Key("name", NAME, "c10d's name of the group", optional=True)]
    description: Annotated[str, Key("desc", NAME, "c10d's description, such as `default_pg`", optional=True)]
    ranks: Annotated[
        str,
        Key(
            "ranks",
            text(MAX_LENGTH),
            "global ranks, such as `0-3,8-12:2`; empty: not known, or in an earlier report",
            optional=True,
        ),
    ]
    backend: Annotated[str, Key("backend", NAME, "such as `gloo` or `cpu:gloo,cuda:nccl`", optional=True)]
    enqueued: Annotated[int, Key("enq", INTEGER, "last collective sequence number enqueued; 0: none")]
    completed: Annotated[int, Key("done", INTEGER, "highest collective sequence number completed; 0: none")]
    p2p_enqueued: Annotated[int, Key("p2p", INTEGER, "last sequence number of a send or receive enqueued; 0: none")]
    calls_enqueued: Annotated[int, Key("issued", INTEGER, "calls of any kind that were enqueued")]
    calls_ended: Annotated[int, Key("ended", INTEGER, "calls of any kind that ended")]
    is_destroyed: Annotated[bool, Key("gone", flag(False), "true: the group was destroyed")]
    idle_s: Annotated[
        float | None,
        Key("idle_s", SECONDS, "since its last call was enqueued or ended", optional=True),
    ] = None
    fingerprint: Annotated[
        tuple[int, ...],
        Key(
            "fp",
            _FINGERPRINT,
            "fingerprints: first number covered; then, in turn, a number and the fingerprint up to it; then, if the"
            " recorder lacks something, a sum of: 1 reduce ops, 2 roots, 4 lists of tensors",
            optional=True,
        ),
    ] = ()


class ReportedActivity(NamedTuple):
    """A section that is open, or the age of the last heartbeat."""

    kind: Annotated[
        str, Key("kind", NAME, "`section`; `heartbeat`: since the last one; `outside`: since the last section ended")
    ]
    name: Annotated[str, Key("name", NAME, "of a section", optional=True)] = ""
    age_s: Annotated[float | None, Key("age_s", SECONDS, "how long it lasts", optional=True)] = None
    limit_s: Annotated[float | None, Key("limit_s", SECONDS, "how long it may last", optional=True)] = None
    is_overdue: Annotated[bool, Key("overdue", flag(False), "true: it has lasted longer", optional=True)] = False


class ReportedRange(NamedTuple):
    """Collectives that the collector has asked for, because ranks disagree about them."""

    group: Annotated[str, Key("g", text(MAX_GROUP_ID), "id of the process group")]
    first: Annotated[
        int, Key("first", INTEGER, "sequence number of the first: as asked for, or the first that the rank still has")
    ]
    last: Annotated[int, Key("last", INTEGER, "sequence number of the last, as asked for")]
    fingerprint: Annotated[
        tuple[int, ...], Key("fp", _FINGERPRINT, "of these only, at some numbers; the form as in GROUP", optional=True)
    ] = ()
    calls: Annotated[
        tuple[ReportedCall, ...], Key("calls", _CALLS, "all of them, if they are not more than 32", optional=True)
    ] = ()


class ReportedDecision(NamedTuple):
    """Decisions of one name, one after the other, that had one value."""

    name: Annotated[str, Key("name", text(MAX_DECIDED), "as passed to `otel_fr.decision`")]
    value: Annotated[str, Key("value", text(MAX_DECIDED), "its text, cut to 80 bytes")]
    digest: Annotated[int, Key("digest", INTEGER, "crc32 of its whole text")]
    first: Annotated[int, Key("first", INTEGER, "number of the first of them, from 1, among those of the name")]
    last: Annotated[int, Key("last", INTEGER, "number of the last")]
    step: Annotated[int | None, Key("step", OPTIONAL_INTEGER, "step in which the first was made", optional=True)] = None


class DropCounts(NamedTuple):
    """What the monitor and the rank's recording have lost."""

    spans: Annotated[int, Key("spans", COUNT, "spans that the monitor dropped")]
    reports: Annotated[int, Key("reports", COUNT, "reports that the monitor dropped")]
    records: Annotated[int, Key("records", COUNT, "calls that were not recorded, or not read from the ring in time")]
    hook_errors: Annotated[int, Key("hook_errors", COUNT, "calls whose recording failed")]


class ReportedException(NamedTuple):
    """An uncaught exception of the rank. Only one of the main thread ends it."""

    type: Annotated[str, Key("type", text(MAX_EXCEPTION), "its class", optional=True)] = ""
    message: Annotated[str, Key("message", text(MAX_EXCEPTION), "its text", optional=True)] = ""
    stack: Annotated[str, Key("stack", _STACK, "its traceback", optional=True)] = ""
    site: Annotated[str, Key("site", NAME, "where it was raised: `file:line function`", optional=True)] = ""
    thread: Annotated[str, Key("thread", NAME, "name of the thread, if it is not the main thread", optional=True)] = ""


class ReportedExit(NamedTuple):
    """How the rank's process ended."""

    code: Annotated[int | None, Key("code", OPTIONAL_INTEGER, "exit code; 0 if a signal ended it or it is not known")]
    signal: Annotated[int, Key("signal", INTEGER, "signal that ended it; 0: none")]
    is_clean: Annotated[bool, Key("clean", flag(False), "true: it ended without an error")]
    is_known: Annotated[bool, Key("known", flag(True), "false: the exit status could not be read")]
    reason: Annotated[
        str,
        Key(
            "reason",
            text(MAX_DOING),
            "why the kernel killed it, such as `out of memory (cgroup limit 4.0 GiB)`",
            optional=True,
        ),
    ] = ""
    is_for_peer: Annotated[
        bool,
        Key(
            "for_peer", flag(False), "true: it ended for a failed peer (`OTEL_FR_ON_PEER_FAILURE=exit`)", optional=True
        ),
    ] = False
    is_for_nodes: Annotated[
        bool,
        Key("for_nodes", flag(False), "true: its launcher ended it because nodes join the job", optional=True),
    ] = False


_read_call = reader_of(ReportedCall)
_read_group = reader_of(ReportedGroup)
_read_exception = reader_of(ReportedException)
_read_activity = reader_of(ReportedActivity)
_read_decision = reader_of(ReportedDecision)


def _read_list(value: object, read: Callable[[Json], _T], most: int) -> tuple[_T, ...]:
    """The objects among the first ``most`` items of a list; what is not one is empty."""
    if not isinstance(value, list) or not value:
        return ()
    return tuple([read(item) for item in value[:most] if isinstance(item, dict)])


def _read_calls(value: object) -> tuple[ReportedCall, ...]:
    return _read_list(value, _read_call, MAX_CALLS)


def _read_exceptions(value: object) -> tuple[ReportedException, ...]:
    return _read_list(value, _read_exception, MAX_THREAD_EXCEPTIONS)


def read_activities(value: object) -> tuple[ReportedActivity, ...]:
    """From the list of a report or a flight-recorder file; what is not one is empty."""
    return _read_list(value, _read_activity, MAX_ACTIVITIES)


def read_decisions(value: object) -> tuple[ReportedDecision, ...]:
    """From the list of a report or a flight-recorder file; what is not one is left out."""
    return _read_list(value, _read_decision, MAX_DECISIONS)


def _read_groups(value: object) -> tuple[ReportedGroup, ...]:
    if not isinstance(value, list) or len(value) > MAX_GROUPS:
        raise ValueError("report without a usable list of groups")
    return tuple([_read_group(item) for item in value if isinstance(item, dict) and _is_group_id(item.get(_GROUP_ID))])


def _is_group_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_GROUP_ID


def _count_up_to(most: int, name: str) -> Form:
    def read(value: object) -> int:
        if type(value) is not int or not 0 <= value <= most:
            raise ValueError(f"report without a usable {name}")
        return value

    return Form(read, None, "integer", Exact(int, 0, most))


_RANK = _count_up_to(MAX_RANK, "rank")
_NUMBER = _count_up_to(MAX_NUMBER, "number")
_GROUPS = Form(_read_groups, None, "list of GROUP", Exact(ReportedGroup, lists=(MAX_GROUPS,)))
_CALLS = Form(_read_calls, (), "list of CALL", Exact(ReportedCall, lists=(MAX_CALLS,)))
_EXCEPTIONS = Form(_read_exceptions, (), "list of EXCEPTION", Exact(ReportedException, lists=(MAX_THREAD_EXCEPTIONS,)))
_ACTIVITIES = Form(read_activities, (), "list of ACTIVITY", Exact(ReportedActivity, lists=(MAX_ACTIVITIES,)))
_DECISIONS = Form(read_decisions, (), "list of DECISION", Exact(ReportedDecision, lists=(MAX_DECISIONS,)))


class RankReport(NamedTuple):
    """One report of one rank. Times are seconds before the moment at which it was built."""

    rank: Annotated[int, Key("rank", _RANK, "global rank", required=True)]
    number: Annotated[int, Key("n", _NUMBER, "report number, rising; older reports are ignored", required=True)]
    stall_s: Annotated[float, Key("stall_s", _STALL_SECONDS, "`OTEL_FR_STALL_SECONDS`")]
    groups: Annotated[tuple[ReportedGroup, ...], Key("groups", _GROUPS, "the rank's process groups", required=True)]
    in_flight: Annotated[tuple[ReportedCall, ...], Key("inflight", _CALLS, "calls in flight, oldest first, at most 64")]
    in_flight_more: Annotated[int, Key("inflight_more", COUNT, "how many more are in flight")]
    failed: Annotated[tuple[ReportedCall, ...], Key("failed", _CALLS, "calls that failed, newest last, at most 16")]
    idle_s: Annotated[float | None, Key("idle_s", SECONDS, "since its last call was enqueued or ended")]
    dropped: Annotated[
        DropCounts | None, Key("dropped", object_of(DropCounts, "DROPPED"), "what was lost", optional=True)
    ] = None
    last: Annotated[
        ReportedCall | None, Key("last", object_of(ReportedCall, "CALL"), "the newest call", optional=True)
    ] = None
    python_blocked: Annotated[
        bool | None,
        Key(
            "python_blocked",
            flag(None),
            "true: the rank did not answer when asked for stacks (GIL held, or stopped)",
            optional=True,
        ),
    ] = None
    site: Annotated[
        str,
        Key(
            "site",
            NAME,
            "where its thread was when stacks were last taken: `file:line function`",
            optional=True,
        ),
    ] = ""
    stack: Annotated[
        str,
        Key(
            "stack",
            _STACK,
            "stacks, the rank's thread first, native ones last",
            optional=True,
        ),
    ] = ""
    exit: Annotated[
        ReportedExit | None, Key("exit", object_of(ReportedExit, "EXIT"), "how the process ended", optional=True)
    ] = None
    exception: Annotated[
        ReportedException | None,
        Key(
            "exception",
            object_of(ReportedException, "EXCEPTION"),
            "the main thread's uncaught exception, which ends the rank",
            optional=True,
        ),
    ] = None
    thread_exceptions: Annotated[
        tuple[ReportedException, ...],
        Key(
            "thread_exceptions",
            _EXCEPTIONS,
            "uncaught exceptions of other threads, oldest first",
            optional=True,
        ),
    ] = ()
    file: Annotated[str, Key("file", text(MAX_PATH), "path of the flight-recorder file", optional=True)] = ""
    reason: Annotated[str, Key("reason", NAME, "why the file was written, such as `stall`", optional=True)] = ""
    error: Annotated[str, Key("error", NAME, "why the file could not be written", optional=True)] = ""
    is_exiting: Annotated[
        bool, Key("exiting", flag(False), "true: the rank's interpreter ends, or has ended", optional=True)
    ] = False
    exit_message: Annotated[
        str, Key("exit_message", NAME, "text passed to `sys.exit`, or the exception handled there", optional=True)
    ] = ""
    exit_site: Annotated[
        str,
        Key(
            "exit_site",
            NAME,
            "where it called `sys.exit` with an error: `file:line function`",
            optional=True,
        ),
    ] = ""
    records_creations: Annotated[
        bool, Key("creations", flag(False), "true: the rank records the creation of process groups", optional=True)
    ] = False
    peer_timeout: Annotated[
        float, Key("peer_s", _PEER_TIMEOUT, "`OTEL_FR_PEER_TIMEOUT`, if it is not 5", optional=True)
    ] = DEFAULT_PEER_TIMEOUT
    activity: Annotated[
        tuple[ReportedActivity, ...],
        Key("activity", _ACTIVITIES, "heartbeats and sections, at most 16", optional=True),
    ] = ()
    step: Annotated[
        int | None, Key("step", OPTIONAL_INTEGER, "number of the training step that has begun last", optional=True)
    ] = None
    step_s: Annotated[float | None, Key("step_s", SECONDS, "since it began", optional=True)] = None
    on_hang: Annotated[str, Key("on_hang", NAME, "`kill`: the monitor ended the rank after a limit", optional=True)] = (
        ""
    )
    doing: Annotated[
        str,
        Key(
            "doing",
            text(MAX_DOING),
            "what the kernel said at that time: `reading /data/x.bin (pipe_read)`",
            optional=True,
        ),
    ] = ""
    running_here: Annotated[
        str,
        Key(
            "here",
            text(MAX_NAME),
            "ranks that run on the monitor's machine, such as `0-7`, if several",
            optional=True,
        ),
    ] = ""
    decisions: Annotated[
        tuple[ReportedDecision, ...],
        Key(
            "decisions",
            _DECISIONS,
            "decisions of the program, in order, at most 48",
            optional=True,
        ),
    ] = ()
    interval_s: Annotated[
        float,
        Key("every_s", _INTERVAL, "seconds to the next report at the latest, if not 1", optional=True),
    ] = DEFAULT_INTERVAL
    is_brief: Annotated[
        bool,
        Key(
            "brief",
            flag(False),
            "true: the report leaves out texts of groups, new calls and `last`",
            optional=True,
        ),
    ] = False
    sampled: Annotated[
        float | None,
        Key("sampled", _SHARE, "share of the traces that are sent, if not 1", optional=True),
    ] = None
    fetched: Annotated[
        ReportedRange | None,
        Key("fetched", object_of(ReportedRange, "RANGE"), "what the collector has asked for: calls", optional=True),
    ] = None
    ras: Annotated[
        ReportedRas | None,
        Key("ras", object_of(ReportedRas, "RAS"), "what NCCL's RAS has answered: nccl_ras", optional=True),
    ] = None
    addresses: Annotated[
        tuple[str, ...],
        Key("addresses", NAMES, "of the rank's own TCP connections when the stacks were last taken", optional=True),
    ] = ()
    unreached: Annotated[
        tuple[str, ...],
        Key(
            "unreached",
            NAMES,
            "peers of these, such as `10.0.0.7:41234`, that had not acknowledged what was sent to them four times",
            optional=True,
        ),
    ] = ()


SECTIONS: Final[dict[str, type]] = {
    "report": RankReport,
    "GROUP": ReportedGroup,
    "CALL": ReportedCall,
    "EXIT": ReportedExit,
    "EXCEPTION": ReportedException,
    "ACTIVITY": ReportedActivity,
    "DECISION": ReportedDecision,
    "RANGE": ReportedRange,
    "RAS": ReportedRas,
    "COMMUNICATOR": ReportedCommunicator,
    "FACT": ReportedFact,
    "DROPPED": DropCounts,
}
"""By their name in docs/reference/rank-report.md, which leaves out the three of RAS."""

_KEYS: Final = {section: keys_of(section) for section in SECTIONS.values()}
_read_report = reader_of(RankReport)


def keys(section: type) -> tuple[Key, ...]:
    """The keys of one of `SECTIONS`, in the order in which they are written."""
    return tuple(key for key, _ in _KEYS[section])


# ---- build


def to_object(section: tuple[Any, ...]) -> dict[str, object]:
    """One of `SECTIONS` as an object for JSON, with the report's keys in their order."""
    pairs = zip(_KEYS[type(section)], section, strict=True)
    return {key.name: _to_json(value) for (key, default), value in pairs if not (key.optional and value == default)}


def _to_json(value: Any) -> object:
    if type(value) in _KEYS:
        return to_object(value)
    if isinstance(value, tuple) and value and type(value[0]) in _KEYS:
        return [to_object(item) for item in value]
    return value


def build(report: RankReport) -> str:
    """The report as JSON text."""
    return json.dumps({VERSION_KEY: VERSION, **to_object(report)}, separators=(",", ":"))


# ---- parse


def parse(body: str, load: Callable[[str], Any] = load_json) -> RankReport:
    """Read a report. Values of a wrong type count as absent; texts and lists are cut to their bounds; lone surrogates,
    which no file, database or metric can hold, become ``?``.

    Args:
        load: reads JSON as `load_json` does, perhaps faster.

    Raises:
        ValueError: it is not JSON, not a report of a version that is understood, lacks its rank, number or groups,
            or is out of all bounds.
    """
    if len(body) > MAX_LENGTH:
        raise ValueError(f"report of more than {MAX_LENGTH} characters")
    try:
        data = load(body)
    except RecursionError as error:
        raise ValueError("report is nested too deep") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"report is not JSON: {error}") from error
    except ValueError as error:  # int() refuses texts of thousands of digits
        raise ValueError("report with a number of too many digits") from error
    version = data.get(VERSION_KEY) if isinstance(data, dict) else None
    if type(version) is not int or version < 1:
        raise ValueError("not a rank report")
    if version > VERSION:
        understood = f"versions 1 to {VERSION} are" if VERSION > 1 else "only version 1 is"
        raise ValueError(f"rank report of version {version}, but {understood} understood: upgrade the collector")
    return _read_report(data)
