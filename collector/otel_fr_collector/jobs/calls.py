"""How the collector keeps one rank's call, and interns what calls have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from sys import getsizeof
from typing import NamedTuple

from otel_fr.identity import STREAMS, Stream
from otel_fr.match import UNENDED, Call, CallState, Group, Signature
from otel_fr.match.facts.instances import InstanceKey, instance_key
from otel_fr.operations import PIECEWISE
from otel_fr.rank_report.bounds import MAX_NAME
from otel_fr.waits.own_time import Before
from otel_fr_collector.jobs.bounded import Cache, CacheBudget

UNIT = 300
"""Bytes of one call: the unit of all weights."""
MEMBER_BYTES = 36
"""Bytes of one rank in a member list: the number, and its place in the tuple."""
MAX_LIGHT = 4
"""A heavier template is kept without its signature and texts where these are not needed."""

MAX_CACHED = 64 << 20
"""Bytes of all caches of what clients send. Dynamic shapes keep making new signatures."""

MAX_GROUP_NAME = 256
"""Characters kept of a group's name and of its description."""
MAX_OPERATION = 64
"""Characters kept of an operation's name where a call's large parts are dropped; c10d's longest name has 33."""
MAX_TEXT = 262_144
"""Characters of the longest text of sizes or dtypes that is read; 4,096 tensors of 8 dimensions fit."""


class RankCall(NamedTuple):
    """One call of one rank. Times in seconds.

    Attributes:
        record: position in the rank's ring.
        enqueued_wall: Unix time at which it was enqueued, by the rank's clock; None: not known.
        enqueued_at: when it was enqueued, or since when a thread waits for it if the report shows that. On the
            collector's monotonic clock. Only calls that a report shows have it.
        age: seconds from enqueueing to the rank's end, if the call was in flight then; or to the report that shows
            that the device has not begun the call, see `is_posted`.
        is_queued: as `Call.queued`; only reports show it.
        is_end_seen: the end was observed only some time after the call ended, so the duration is too long.
        before: as in `CompactCall`. thread: as `Call.thread`; only reports show it.
    """

    rank: int
    record: int
    group: str
    stream: Stream
    sequence_id: int
    signature: Signature
    state: CallState
    pair_index: int = 0
    site: str = ""
    error: str | None = None
    timeout: float | None = None
    duration: float | None = None
    gap: float | None = None
    enqueued_wall: float | None = None
    enqueued_at: float | None = None
    age: float | None = None
    is_queued: bool | None = False
    is_end_seen: bool = False
    before: Before | None = None
    thread: str = ""

    @property
    def is_posted(self) -> bool:
        """Whether a report shows that no thread waits for the call. Such a call does not age."""
        return self.state in UNENDED and self.enqueued_at is None and (self.age == 0.0 or self.is_queued is True)

    def says_as_much(self, later: RankCall) -> bool:
        """Whether the call waits, and ``later``, from a later report, adds nothing."""
        return (
            self.state is later.state
            and self.enqueued_at is not None
            and later.enqueued_at is not None
            and self.enqueued_at <= later.enqueued_at
            and self.signature is later.signature
            and self.site is later.site
            and self.duration is later.duration is None
            and self.is_queued is later.is_queued
            and (self.gap is not None or later.gap is None)
            and (self.timeout is not None or later.timeout is None)
            and (self.enqueued_wall is not None or later.enqueued_wall is None)
        )

    def as_call(self, now: float) -> Call:
        """Convert to the match engine's form. ``now``: monotonic time up to which a call in flight has aged."""
        age = self.age
        if self.enqueued_at is not None:
            age = max(0.0, now - self.enqueued_at)
        return Call(
            rank=self.rank,
            group=self.group,
            stream=self.stream,
            sequence_id=self.sequence_id,
            record=self.record,
            signature=self.signature,
            state=self.state,
            pair_index=self.pair_index,
            age=age,
            duration=self.duration,
            gap=self.gap,
            timeout=self.timeout,
            error=self.error,
            site=self.site,
            queued=self.is_queued,
            thread=self.thread,
        )

    def key(self) -> InstanceKey | None:
        """The instance that the call belongs to; None: not known (a receive from any source)."""
        if self.stream != "p2p":
            return self.group, self.stream, self.sequence_id
        return instance_key(self.as_call(0.0))


@dataclass(frozen=True, slots=True)
class Template:
    """What all spans of one call site, signature, group and state have in common; ``group`` lacks its members.

    Attributes:
        size: of the group; 0: not known. timeout: seconds. is_end_seen: as in `RankCall`.
        weight: of the signature, see `weight_of`. text_weight: of the texts, see `weight_of_texts`.
        is_heavy: both weights together exceed `MAX_LIGHT`.
        is_completed_collective: true for nearly all; computed once, because it is read for each span.
    """

    group: Group
    size: int
    signature: Signature
    weight: int
    stream: Stream
    state: CallState
    site: str = ""
    error: str | None = None
    timeout: float | None = None
    text_weight: int = 0
    is_heavy: bool = False
    is_end_seen: bool = False
    is_completed_collective: bool = field(init=False)

    def __post_init__(self) -> None:
        is_usual = self.stream == "collective" and self.state is CallState.COMPLETED
        object.__setattr__(self, "is_completed_collective", is_usual)

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        texts = (self.group.id, self.group.name, self.group.description, self.site, self.error)
        return 2 * UNIT + bytes_of(self.signature) + sum(map(getsizeof, texts))

    def light(self) -> Template:
        """A copy without large parts, for a completed call that is compared with no other."""
        group = Group(self.group.id, "", "", ())
        signature = Signature(self.signature.operation[:MAX_OPERATION])
        return Template(
            group, self.size, signature, 0, self.stream, self.state, timeout=self.timeout, is_end_seen=self.is_end_seen
        )


SpanCall = tuple[Template, int, int, int, int, int, float | None]
"""One span: template, sequence id, record, pair index, start and end in Unix nanoseconds, and the seconds that the
device spent in it, by its clock (None: not known)."""


CompactCall = tuple[int, Template, int, int, int, int, int, float | None, Before | None]
"""A call as its span shows it: rank, the fields of `SpanCall` up to the end time, seconds since the rank's previous
call (`RankCall.gap`), what the rank did before (None: no device times, sends or receives are known).

Healthy calls are kept in this form because it is the cheapest: garbage collection visits only one object for each.
`expand` converts a call to a `RankCall` when it must be examined.
"""


def expand(call: RankCall | CompactCall) -> RankCall:
    """The call as a `RankCall`."""
    if isinstance(call, RankCall):
        return call
    rank, template, sequence, record, pair, start, end, gap, before = call
    took = max(0, end - start) / 1e9
    in_flight = template.state is CallState.IN_FLIGHT
    # Positional: with keywords it takes three times as long, and each send and receive passes here.
    return RankCall(
        rank,
        record,
        template.group.id,
        template.stream,
        sequence,
        template.signature,
        template.state,
        pair,
        template.site,
        template.error,
        template.timeout,
        None if in_flight else took,
        gap,
        start / 1e9,
        None,
        took if in_flight else None,
        False,
        template.is_end_seen,
        before,
    )


def bare(call: RankCall) -> RankCall:
    """The call without its large parts."""
    signature = Signature(call.signature.operation[:MAX_OPERATION])
    return call._replace(signature=signature, site="", error=call.error and call.error[:MAX_OPERATION])


def lighten(call: CompactCall) -> CompactCall:
    """The call with a light template."""
    rank, template, sequence, record, pair, start, end, gap, before = call
    return rank, template.light(), sequence, record, pair, start, end, gap, before


_STREAMS: dict[str, Stream] = {name: name for name in STREAMS}


def stream_of(kind: str, operation: str) -> Stream:
    """The stream of sequence numbers that a call belongs to, from its operation and its kind as sent."""
    return _STREAMS.get(operation if operation == "monitored_barrier" else kind, "collective")


def state_of(text: str, error: str | None) -> CallState:
    """The state as sent (``scheduled``, ``completed``, ``failed``); an error other than the rank's end is a failure."""
    if text == "failed" or (error and error != "rank_exited"):
        return CallState.FAILED
    if text == "completed":
        return CallState.COMPLETED
    return CallState.IN_FLIGHT if text in ("scheduled", "started") else CallState.UNKNOWN


_SHORT_TEXT = 60
"""Bytes of a short text such as an operation's name."""
_USUAL_TEXT = 160
"""Bytes of a text like a call site: 49, and one for each character if all are ASCII."""


def weight_of(signature: Signature) -> int:
    """Memory that a signature takes, in `UNIT`, rounded down."""
    return bytes_of(signature) // UNIT


def bytes_of(signature: Signature) -> int:
    """Approximate bytes of a signature beyond the tuple itself: 36 for each number, and for each tuple in it."""
    shapes = (*signature.input_sizes, *signature.output_sizes)
    dtypes = (*signature.input_dtypes, *signature.output_dtypes)
    splits = (signature.input_splits or (), signature.output_splits or ())
    numbers = sum(map(len, shapes)) + len(shapes) + sum(map(len, splits))
    texts = [signature.operation, signature.reduce_op, *dtypes]
    if signature.new_group is not None:
        numbers += len(signature.new_group.ranks)
        texts += [signature.new_group.name, signature.new_group.description]
    return 36 * numbers + max(0, sum(map(getsizeof, texts)) - 2 * _SHORT_TEXT)


def weight_of_texts(*texts: str | None) -> int:
    """Memory that a call's texts take beyond usual lengths, in `UNIT`. Many calls may share them, but need not."""
    return max(0, sum(map(getsizeof, texts)) - len(texts) * _USUAL_TEXT) // UNIT


def is_even(signature: Signature) -> bool:
    """Whether members that all pass this signature match, whatever their positions in the group."""
    if signature.operation not in PIECEWISE:
        return True
    splits = signature.input_splits or signature.output_splits
    return not splits and len(set(signature.input_sizes)) <= 1 and len(set(signature.output_sizes)) <= 1


class Interner:
    """Equal signatures become one object, so that comparing two healthy ranks' calls is an ``is``.

    Signatures not used lately are evicted, so equal signatures may, rarely, be two objects.

    Args:
        limit: bytes of all caches that share its budget.

    Attributes:
        members: member lists by their text. All ranks of a group send the same text, and share one tuple.
        groups: by id, name, description and text of the member list, as reports have them.
    """

    def __init__(self, limit: int = MAX_CACHED) -> None:
        budget = self.budget = CacheBudget(limit)
        self._signatures: Cache[Signature, tuple[Signature, int]] = Cache(budget, lambda key, _: UNIT + bytes_of(key))
        self._texts: Cache[str, str] = Cache(budget, lambda known, _: UNIT + getsizeof(known))
        self.members: Cache[str, tuple[int, ...]] = Cache(
            budget, lambda text, ranks: UNIT + len(text) + MEMBER_BYTES * len(ranks)
        )
        self.groups: Cache[tuple[str, ...], Group] = Cache(
            budget, lambda key, group: 2 * UNIT + sum(map(getsizeof, key)) + MEMBER_BYTES * len(group.ranks)
        )

    def signature(self, signature: Signature) -> Signature:
        return self.weighed(signature)[0]

    def weighed(self, signature: Signature) -> tuple[Signature, int]:
        """The one object for equal signatures, and its `weight_of`."""
        known = self._signatures.young.get(signature)
        if known is None:
            known = self._signatures.get(signature)
        if known is None:
            known = self._signatures.put(signature, (signature, weight_of(signature)))
        return known

    def text(self, text: str) -> str:
        """One object for equal texts (call sites): a million calls share a few of them."""
        text = text[:MAX_NAME]
        known = self._texts.get(text)
        return self._texts.put(text, text) if known is None else known
