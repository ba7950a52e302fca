"""The sections of a rank report: groups, calls, and what else a rank reports about itself."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from otel_fr.rank_report.bounds import (
    MAX_CALLS,
    MAX_DECIDED,
    MAX_DOING,
    MAX_EXCEPTION,
    MAX_LINES,
    MAX_PLACE_FRAMES,
    MAX_PLACES,
    Count,
    Fingerprint,
    GroupId,
    Integer,
    Milliseconds,
    Name,
    Names,
    Ranks,
    Seconds,
    Sizes,
    Splits,
    Stack,
)
from otel_fr.rank_report.section import Section
from otel_fr.stacks import site_of


class ReportedCall(Section, frozen=True):
    """One call of the rank (CALL in docs/reference/rank-report.md)."""

    group: Annotated[GroupId, Meta(description="id of the process group")] = field(name="g")
    stream: Annotated[Name, Meta(description="`collective`, `p2p`, `monitored_barrier` or `group`")] = field(name="k")
    sequence: Annotated[Count, Meta(description="sequence number in that stream of the group")] = field(name="seq")
    record: Annotated[Count, Meta(description="calls that the rank enqueued before this one")] = field(name="rec")
    operation: Annotated[Name, Meta(description="name in `torch.distributed`")] = field(name="op")
    state: Annotated[Name, Meta(description="`scheduled`, `completed`, `failed` or `unknown`")] = field(name="st")
    op_id: Annotated[Count, Meta(description="PyTorch's op id in the group")] = 0
    pair_index: Annotated[Count, Meta(description="sends and receives: pair index")] = field(name="i", default=0)
    backend: Annotated[Name, Meta(description="backend that ran the call")] = field(name="be", default="")
    input_sizes: Annotated[Sizes, Meta(description="shapes of the inputs; the first 256")] = field(
        name="in", default=()
    )
    input_dtypes: Annotated[Names, Meta(description="dtypes of the inputs; the first 256")] = field(
        name="idt", default=()
    )
    output_sizes: Annotated[Sizes, Meta(description="shapes of the outputs; the first 256")] = field(
        name="out", default=()
    )
    output_dtypes: Annotated[Names, Meta(description="dtypes of the outputs; the first 256")] = field(
        name="odt", default=()
    )
    input_splits: Annotated[Splits | None, Meta(description="of all_to_all_single; null: even")] = field(
        name="isp", default=None
    )
    output_splits: Annotated[Splits | None, Meta(description="of all_to_all_single; null: even")] = field(
        name="osp", default=None
    )
    reduce_op: Annotated[Name | None, Meta(description="reduce op, lower case")] = field(name="ro", default=None)
    root: Annotated[Integer | None, Meta(description="global rank")] = None
    peer: Annotated[Integer | None, Meta(description="global rank")] = None
    tag: Annotated[Integer | None, Meta(description="of a send or receive")] = None
    timeout_ms: Annotated[Milliseconds | None, Meta(description="the call's timeout")] = None
    age_s: Annotated[Seconds | None, Meta(description="since the call was enqueued")] = None
    site: Annotated[Name, Meta(description="call site: `file:line function`")] = ""
    any_source: Annotated[bool, Meta(description="true: a receive from any source")] = field(name="any", default=False)
    is_posted: Annotated[
        bool,
        Meta(
            description="true: no thread waits for this send or receive, or the device has not begun the call",
        ),
    ] = field(name="posted", default=False)
    wait_s: Annotated[
        Seconds | None, Meta(description="for such a call: since a thread waits for it, or the device began it")
    ] = None
    duration_s: Annotated[Seconds | None, Meta(description="from enqueueing to the end, if the call has ended")] = (
        field(name="dur_s", default=None)
    )
    gap_s: Annotated[Seconds | None, Meta(description="from the end of the previous call to its enqueueing")] = None
    error: Annotated[Name | None, Meta(description="of a failed call: `timeout` or `collective_failed`")] = field(
        name="err", default=None
    )
    new_name: Annotated[Name | None, Meta(description="name of the process group that it creates")] = field(
        name="ng", default=None
    )
    new_description: Annotated[Name, Meta(description="that group's description")] = field(name="ngd", default="")
    new_ranks: Annotated[Ranks, Meta(description="that group's members, such as `0-3,8-12:2`")] = field(
        name="ngr", default=""
    )
    awaits_all: Annotated[
        bool, Meta(description="true: the call waits for every rank of the group, not only these")
    ] = field(name="nga", default=False)
    run_s: Annotated[Seconds | None, Meta(description="time on the device, if known")] = None
    is_queued: Annotated[bool, Meta(description="true: its device has not begun it; absent: it may have")] = field(
        name="queued", default=False
    )
    thread: Annotated[Name, Meta(description="thread of the program that made the call; absent: the main thread")] = ""


Calls = Annotated[tuple[ReportedCall, ...], Meta(max_length=MAX_CALLS)]


class ReportedGroup(Section, frozen=True):
    """The rank's progress in one process group."""

    id: Annotated[GroupId, Meta(description="`identity.group_id`")]
    name: Annotated[Name, Meta(description="c10d's name of the group")] = ""
    description: Annotated[Name, Meta(description="c10d's description, such as `default_pg`")] = field(
        name="desc", default=""
    )
    ranks: Annotated[
        Ranks,
        Meta(description="global ranks, such as `0-3,8-12:2`; empty: not known, or in an earlier report"),
    ] = ""
    backend: Annotated[Name, Meta(description="such as `gloo` or `cpu:gloo,cuda:nccl`")] = ""
    enqueued: Annotated[Count, Meta(description="last collective sequence number enqueued; 0: none")] = field(
        name="enq", default=0
    )
    completed: Annotated[Count, Meta(description="highest collective sequence number completed; 0: none")] = field(
        name="done", default=0
    )
    p2p_enqueued: Annotated[Count, Meta(description="last sequence number of a send or receive enqueued; 0: none")] = (
        field(name="p2p", default=0)
    )
    calls_enqueued: Annotated[Count, Meta(description="calls of any kind that were enqueued")] = field(
        name="issued", default=0
    )
    calls_ended: Annotated[Count, Meta(description="calls of any kind that ended")] = field(name="ended", default=0)
    is_destroyed: Annotated[bool, Meta(description="true: the group was destroyed")] = field(name="gone", default=False)
    idle_s: Annotated[Seconds | None, Meta(description="since its last call was enqueued or ended")] = None
    fingerprint: Annotated[
        Fingerprint,
        Meta(
            description="fingerprints: first number covered; then, in turn, a number and the fingerprint up to it;"
            " then, if the recorder lacks something, a sum of: 1 reduce ops, 2 roots, 4 lists of tensors"
        ),
    ] = field(name="fp", default=())


class ReportedPattern(Section, frozen=True):
    """The rank made equally many of these sends (or receives) in each step (`otel_fr.dumps.message_patterns`)."""

    group: Annotated[GroupId, Meta(description="id of the messages' process group")] = field(name="g")
    source: Annotated[Count, Meta(description="global rank that sends")] = field(name="src")
    destination: Annotated[Count, Meta(description="global rank that receives")] = field(name="dst")
    tag: Annotated[Integer, Meta(description="tag of the messages")] = 0
    step: Annotated[
        GroupId,
        Meta(
            description="id of the group whose calls end the steps: the rank kept the pattern up to its call in flight;"
            " absent: until its last step, in which it made fewer, or another one first"
        ),
    ] = ""


class ReportedActivity(Section, frozen=True):
    """A section that is open, or the age of the last heartbeat."""

    kind: Annotated[
        Name,
        Meta(description="`section`; `heartbeat`: since the last one; `outside`: since the last section ended"),
    ]
    name: Annotated[Name, Meta(description="of a section")] = ""
    age_s: Annotated[Seconds | None, Meta(description="how long it has lasted")] = None
    limit_s: Annotated[Seconds | None, Meta(description="how long it may last")] = None
    is_overdue: Annotated[bool, Meta(description="true: it has lasted longer")] = field(name="overdue", default=False)


class ReportedRange(Section, frozen=True):
    """Collectives that the collector has asked for, because ranks disagree about them."""

    group: Annotated[GroupId, Meta(description="id of the process group")] = field(name="g")
    first: Annotated[
        Count,
        Meta(description="first sequence number: as requested, or the first that the rank still has"),
    ]
    last: Annotated[Count, Meta(description="last sequence number, as requested")]
    fingerprint: Annotated[
        Fingerprint, Meta(description="of these calls only, at some numbers; in the form of GROUP")
    ] = field(name="fp", default=())
    calls: Annotated[Calls, Meta(description="all of them, if at most 32")] = ()


class ReportedDecision(Section, frozen=True):
    """Successive decisions with one name and the same value."""

    name: Annotated[str, Meta(max_length=MAX_DECIDED, description="as passed to `otel_fr.decision`")]
    value: Annotated[str, Meta(max_length=MAX_DECIDED, description="the value as text, cut to 80 bytes")]
    digest: Annotated[Count, Meta(description="crc32 of the uncut text")]
    first: Annotated[Count, Meta(description="number, from 1 for each name, of the first of these equal decisions")]
    last: Annotated[Count, Meta(description="number of the last of them")]
    step: Annotated[Integer | None, Meta(description="step of the first of them")] = None


class ReportedLines(Section, frozen=True):
    """Where the rank made its latest collectives in one process group."""

    group: Annotated[GroupId, Meta(description="id of the process group")] = field(name="g")
    first: Annotated[Count, Meta(description="sequence number of the first of these calls")]
    calls: Annotated[
        str,
        Meta(
            max_length=MAX_LINES,
            description="a character for each call: its place's position in `0-9a-zA-Z-_`; a space: not known",
        ),
    ]
    places: Annotated[
        tuple[Annotated[tuple[Name, ...], Meta(max_length=MAX_PLACE_FRAMES)], ...],
        Meta(max_length=MAX_PLACES, description="up to four frames each, `file:line function`, the innermost first"),
    ]


class ReportedLoop(Section, frozen=True):
    """A loop of the program."""

    file: Annotated[Name, Meta(description="path of its source")]
    first: Annotated[Count, Meta(description="line in which it begins")]
    last: Annotated[Count, Meta(description="line in which its body ends")]
    function: Annotated[Name, Meta(description="the function that has it")]
    is_nested: Annotated[bool, Meta(description="true: the program may enter it again")] = field(
        name="nested", default=False
    )


class ReportedRoundTrip(Section, frozen=True):
    """A host to which round trips take long."""

    peer: Annotated[Name, Meta(description="address of the other end, such as `10.0.0.7`")] = field(name="to")
    seconds: Annotated[Seconds, Meta(description="smoothed, of the fastest connection to it that is in use")] = field(
        name="s"
    )


class DropCounts(Section, frozen=True):
    """What the monitor and the rank's recording have lost."""

    spans: Annotated[Count, Meta(description="spans that the monitor dropped")] = 0
    reports: Annotated[Count, Meta(description="reports that the monitor dropped")] = 0
    records: Annotated[Count, Meta(description="calls that were not recorded, or not read from the ring in time")] = 0
    hook_errors: Annotated[Count, Meta(description="calls whose recording failed")] = 0
    commands: Annotated[Count, Meta(description="commands that ranks of this machine did not take in time")] = 0


class ReportedException(Section, frozen=True):
    """An uncaught exception of the rank. Only an exception of the main thread ends the rank."""

    type: Annotated[str, Meta(max_length=MAX_EXCEPTION, description="its class")] = ""
    message: Annotated[str, Meta(max_length=MAX_EXCEPTION, description="its text")] = ""
    stack: Annotated[Stack, Meta(description="its traceback")] = ""
    site: Annotated[Name, Meta(description="where it was raised: `file:line function`")] = ""
    thread: Annotated[Name, Meta(description="name of the thread, if it is not the main thread")] = ""

    @property
    def text(self) -> str:
        """The class and the text, as far as they are known."""
        text = f"{self.type}: {self.message}" if self.type and self.message else self.type or self.message
        return text[:MAX_EXCEPTION]

    @property
    def raised_at(self) -> str:
        """The reported site, or else the site of the traceback: ``"file:line function"``."""
        return self.site or site_of(self.stack)


class ReportedExit(Section, frozen=True):
    """How the rank's process ended."""

    code: Annotated[Integer | None, Meta(description="exit code; 0 if a signal ended it or it is not known")] = None
    signal: Annotated[Integer, Meta(description="signal that ended it; 0: none")] = 0
    is_clean: Annotated[bool, Meta(description="true: it ended without an error")] = field(name="clean", default=False)
    is_known: Annotated[bool, Meta(description="false: the exit status could not be read")] = field(
        name="known", default=True
    )
    reason: Annotated[
        str,
        Meta(
            max_length=MAX_DOING,
            description="why the kernel killed it, such as `out of memory (cgroup limit 4.0 GiB)`",
        ),
    ] = ""
    is_for_peer: Annotated[
        bool, Meta(description="true: it ended for a failed peer (`OTEL_FR_ON_PEER_FAILURE=exit`)")
    ] = field(name="for_peer", default=False)
    is_for_nodes: Annotated[bool, Meta(description="true: its launcher ended it because nodes join the job")] = field(
        name="for_nodes", default=False
    )
