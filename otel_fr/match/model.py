"""The input of the match engine (`Evidence`): plain data, no I/O.

Times are durations in seconds measured by one rank's own clock. Two ranks' clocks are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from signal import SIGABRT
from typing import Literal, NamedTuple

from otel_fr.communication_errors import tells_of_user
from otel_fr.identity import Stream
from otel_fr.operations import DESTRUCTIONS, NewGroup
from otel_fr.stacks import CallLines, Loop

Sizes = tuple[tuple[int, ...], ...]


class Signature(NamedTuple):
    """What a call does. Hashable, so that equal calls share one signature.

    Attributes:
        operation: its name in `torch.distributed`, whatever the backend calls it (docs/reference/rank-report.md).
        input_sizes, output_sizes: one shape per tensor.
        input_dtypes, output_dtypes: PyTorch scalar type names (``"Float"``), one per tensor.
        input_splits, output_splits: all_to_all_single only; None: even; (): not recorded.
        reduce_op: lower case (``"sum"``); None: none, or unknown (PyTorch's own recorder does not record it).
        root, peer: global ranks. tag: p2p only. any_source: a receive that accepts any sender.
        new_group: the process group that the call creates.
    """

    operation: str
    input_sizes: Sizes = ()
    output_sizes: Sizes = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    input_splits: tuple[int, ...] | None = None
    output_splits: tuple[int, ...] | None = None
    any_source: bool = False
    new_group: NewGroup | None = None

    @property
    def destroys(self) -> bool:
        """True if the call destroys its group. Ranks do not wait for each other in such a call."""
        return self.operation in DESTRUCTIONS


class CallState(Enum):
    """The state of one rank's call."""

    IN_FLIGHT = "scheduled"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Enqueued; the backend does not show when it ends."""


UNENDED = (CallState.IN_FLIGHT, CallState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group. ``ranks`` are global; empty: members unknown."""

    id: str
    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class Call:
    """One rank's part in one collective, or one send or receive. Treat it as immutable.

    It is not frozen: creating a frozen one takes three times as long, and a verdict needs one or two calls per rank.

    Attributes:
        group: `Group.id`.
        sequence_id: the number within (group, stream). For p2p it is the rank's own count, not comparable.
        record: position in the rank's recorder; gives the order of one rank's calls.
        pair_index: number of a send or receive, from 0, among those with this group, peer, direction and tag.
        age: seconds since the call was enqueued; None: unknown; a call in flight then counts as older than any window.
            For a send or receive in flight: seconds that a thread has waited for it; 0: none waits.
        duration: seconds from enqueueing to the end; None: not ended, or unknown.
        gap: seconds between the end of the rank's previous call and this call; None: unknown.
        error: error.type of a failed call (``"timeout"``).
        site: ``"file:line function"``; empty: unknown.
        thread: name of the program's thread that made the call; empty: the main thread, PyTorch's, or unknown.
        batch: shared by the calls of one coalesced batch; None: not in a batch.
        queued: its device has not begun it; None: in flight on a device, which may or may not have begun it.
        left: it failed, and its rank continued. caught: the rank also completed a later call (`facts.recording`).
    """

    rank: int
    group: str
    stream: Stream
    sequence_id: int
    record: int
    signature: Signature
    state: CallState
    pair_index: int = 0
    age: float | None = None
    duration: float | None = None
    gap: float | None = None
    timeout: float | None = None
    error: str | None = None
    site: str = ""
    batch: int | None = None
    queued: bool | None = False
    thread: str = ""
    left: bool = False
    caught: bool = False

    @property
    def lasted(self) -> float | None:
        """Seconds for which the call has been in flight, or was until it failed; None: unknown."""
        return self.duration if self.state is CallState.FAILED else self.age


class Ending(Enum):
    """Whether and how a rank's process ended."""

    RUNNING = "running"
    CLEAN = "clean"
    """A normal exit of the interpreter, or exit code 0."""
    RAISED = "raised"
    """An uncaught exception is recorded, or the exit code is not 0."""
    KILLED = "killed"
    """Ended by a signal."""
    GONE = "gone"
    """Ended in an unknown way."""
    UNKNOWN = "unknown"
    """Nothing is known of the rank: no file, no report."""


@dataclass(slots=True)
class Progress:
    """How far a rank came in one group. None: unknown.

    Attributes:
        enqueued, completed: sequence number of the last collective enqueued / completed; 0: none yet.
        messages: sequence number of the last send or receive enqueued; 0: none yet. A rank's own count.
        first_recorded: the oldest collective still in the rank's recorder; None: no older one was dropped.
        destroyed: the rank has destroyed the group. destroyed_at: ``"file:line function"`` that did so; empty: unknown.
    """

    enqueued: int | None = None
    completed: int | None = None
    first_recorded: int | None = None
    destroyed: bool = False
    messages: int | None = None
    destroyed_at: str = ""


class ThreadException(NamedTuple):
    """An uncaught exception of a thread other than the main thread: evidence about its rank, which continues.

    Attributes:
        thread: its name. exception, site: like `Rank.exception` and `Rank.exception_site`.
    """

    thread: str
    exception: str
    site: str = ""


class Overdue(NamedTuple):
    """An activity that has lasted longer than its limit (in `Rank.within`: not yet). Times in seconds.

    Attributes:
        kind: an open section, the time since the last heartbeat, or the time since the last section ended.
        name: of the section.
    """

    kind: Literal["section", "heartbeat", "outside"]
    name: str
    age: float
    limit: float


class Decision(NamedTuple):
    """Consecutive decisions of one name in which a rank chose the same value.

    Attributes:
        value: its text, possibly truncated. digest: of the full text.
        first, last: numbers, from 1, among the rank's decisions of this name.
        step: the training step of the first of them; None: unknown.
    """

    name: str
    value: str
    digest: int
    first: int
    last: int
    step: int | None = None


class MessagePattern(NamedTuple):
    """A rank enqueued the same number of these sends (or receives) in each of its steps.

    Attributes:
        group: `Group.id`. source, destination: global ranks; one of them is the rank.
        step: `Group.id` of the group whose collectives end the steps: the pattern holds up to the one in flight. "": it
            ended with the rank's last step, of any kind, in which the rank enqueued fewer, or another message first.
    """

    group: str
    source: int
    destination: int
    tag: int
    step: str = ""


MAX_HOST = 256
"""Characters kept of the name of a host, GPU, pod, node or namespace; a DNS name has at most 253 (RFC 1035, 2.3.4)."""


class Place(NamedTuple):
    """Where a rank runs. Empty texts and None: unknown.

    Attributes:
        host: the host name that the rank's operating system reports; in a container, the container's.
        pid: in the rank's own namespace of process ids.
        gpu: index or UUID of its GPU on the host, as ``nvidia-smi`` shows it.
        pod, node, namespace: in Kubernetes: its pod, the machine on which the pod runs, and the pod's namespace.
    """

    host: str = ""
    pid: int | None = None
    local_rank: int | None = None
    gpu: str = ""
    pod: str = ""
    node: str = ""
    namespace: str = ""

    @property
    def machine(self) -> str:
        """What an operator calls the machine; "": not known."""
        return self.node or self.host

    @property
    def process(self) -> tuple[str, int | None]:
        """Host and process id, which stay the same when the process joins another run."""
        return self.host, self.pid


UNPLACED = Place()
"""Nothing is known of where a rank runs."""


@dataclass(slots=True)
class Rank:
    """What is known about one rank.

    Attributes:
        place: where it runs. file: its flight-recorder file.
        ending: how its process ended; ``signal``, ``exit_code`` and ``exception`` have the details.
        kill_reason: why the kernel killed it: ``"out of memory (cgroup limit 4.0 GiB)"``; "": unknown.
        exception: of the main thread, ``"ValueError: bad sample 4711"``. exception_site: where it was raised.
        thread_exceptions: of its other threads, oldest first.
        exiting: alive, but its interpreter is ending. exit_message: what it passed to ``sys.exit``, if that is text.
        python_blocked: alive, but its Python threads do not run (GIL held in C code, or stopped).
        idle: seconds since it last enqueued or ended a call; None: unknown. starved: of these, without a processor.
        completed_age: seconds since it enqueued its newest call that is known to have completed; None: unknown.
        ended_for: seconds from its end to newer evidence of all running ranks; None: unknown.
        site: ``"file:line function"``, the current line of its thread. stack: text, the rank's thread first.
        left_loops: loops that it has left since its latest calls in them, the latest first.
        lines: the lines of its latest calls, unless its file has them.
        progress: by group id; a group is missing if the rank has not used it.
        has_gaps: its recording had errors: calls and counts may be missing, so no verdict rests on them. For an unheard
            rank: the collector had no room for it.
        complete: the evidence has every call that the rank has in flight, and `progress` is exact.
        unlisted: seconds that it has waited in a call that is not in the evidence; None: there is none.
        records_creations: its recorder records the creation of groups; other recorders, and an otel-fr that was started
            after the default group was created, do not.
        heard_at: Unix time of its last report, if it has fallen silent; None: it has not, or was never heard of.
        overdue: activities past their limits, when last known. ended_by_monitor: its monitor ended it for that.
        within: the open section that may last longest, if its limit has not passed and nothing is overdue.
        ended_for_peer: it ended because otel-fr had told it that a peer had failed.
        doing: its state in the kernel, as words after "it is": ``"stopped by a signal (SIGSTOP)"``.
        addresses: its own, of its TCP connections. unreached: peers that acknowledge nothing: ``"10.0.0.7:41234"``.
        round_trips: (peer, seconds) of long round trips: ``("10.0.0.7", 0.2)``.
        patterns: patterns of its messages that it kept up to a call in flight, or broke in its last step.
        decisions: what its program has decided, in order. step: its training step by then; None: unknown.
        destroying: its call in flight that destroys groups; leaving: the ids of these groups. The engine sets both.
    """

    rank: int
    _: KW_ONLY
    ending: Ending = Ending.RUNNING
    signal: int | None = None
    exit_code: int | None = None
    exception: str = ""
    exception_site: str = ""
    thread_exceptions: tuple[ThreadException, ...] = ()
    exiting: bool = False
    exit_message: str = ""
    python_blocked: bool = False
    idle: float | None = None
    starved: float = 0.0
    completed_age: float | None = None
    ended_for: float | None = None
    site: str = ""
    stack: str = ""
    left_loops: tuple[Loop, ...] = ()
    lines: tuple[CallLines, ...] = ()
    progress: dict[str, Progress] = field(default_factory=dict)
    has_gaps: bool = False
    complete: bool = True
    unlisted: float | None = None
    records_creations: bool = True
    file: str = ""
    overdue: tuple[Overdue, ...] = ()
    within: Overdue | None = None
    ended_by_monitor: bool = False
    ended_for_peer: bool = False
    doing: str = ""
    addresses: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    round_trips: tuple[tuple[str, float], ...] = ()
    kill_reason: str = ""
    place: Place = UNPLACED
    patterns: tuple[MessagePattern, ...] = ()
    decisions: tuple[Decision, ...] = ()
    step: int | None = None
    heard_at: float | None = None
    destroying: Call | None = None
    leaving: frozenset[str] = frozenset()

    def has_enqueued(self, group: str, number: int) -> bool:
        """Return True if the rank's counts show that it has enqueued the collective with this number."""
        own = self.progress.get(group)
        return own is not None and (own.enqueued or 0) >= number

    def waits_by_counts(self, group: str, number: int) -> bool:
        """Return True if, by its counts, the rank waits in the collective, while the evidence lacks its call."""
        own = self.progress.get(group)
        return self.unlisted is not None and own is not None and (own.enqueued or 0) >= number > (own.completed or 0)

    @property
    def was_aborted(self) -> bool:
        """True if SIGABRT ended the rank. NCCL's watchdog ends its process this way."""
        return self.ending is Ending.KILLED and self.signal == SIGABRT

    @property
    def is_unheard(self) -> bool:
        """True if there is no evidence of the rank at all, now or earlier."""
        return self.ending is Ending.UNKNOWN and not (self.progress or self.file) and self.heard_at is None

    @property
    def is_leaving(self) -> bool:
        """True if the interpreter is ending, or was when the rank was killed, and not because of the user's Ctrl-C."""
        if self.ending is Ending.KILLED and tells_of_user(self.exception):
            return False
        return self.exiting and self.ending in (Ending.RUNNING, Ending.KILLED)  # all others have exited

    def has_left(self, group: str) -> bool:
        """Return True if the rank can join no call of the group any more: it is leaving, or has destroyed the group."""
        return self.is_leaving or self.has_destroyed(group)

    def has_destroyed(self, group: str) -> bool:
        """Return True if the rank has destroyed the group, or does so now."""
        return group in self.leaving or ((own := self.progress.get(group)) is not None and own.destroyed)


WAIT_SHARE = 0.87
"""Share of a rank's stall time after which its call counts as waiting. The rest is the time that an alert takes."""
WINDOW_MARGIN = 0.05
"""Seconds by which the window is shorter, so that the call that triggers a judgement counts as waiting in it."""


def window_of(stall: float) -> float:
    """Return the collector's `Evidence.window` for ranks with this stall time in seconds."""
    return max(0.0, WAIT_SHARE * stall - WINDOW_MARGIN)


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything known about one run at one moment.

    Attributes:
        window: seconds a call must have been in flight before its rank counts as waiting. world_size: None: unknown.
    """

    groups: Mapping[str, Group]
    calls: Sequence[Call]
    ranks: Mapping[int, Rank]
    window: float
    world_size: int | None = None

    def ending_of(self, rank: int) -> Ending:
        """Return how a rank ended; UNKNOWN also for a rank without evidence."""
        return self.ranks[rank].ending if rank in self.ranks else Ending.UNKNOWN
