"""Where telemetry comes from: the job, run and rank that a resource names, read in one place.

Tokens are checked for the job that `read_source` returns, and the run is identified by the same value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from sys import getsizeof

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr import semconv as names
from otel_fr.match import UNPLACED, Place
from otel_fr.match.model import MAX_HOST
from otel_fr.rank_report import MAX_RANK
from otel_fr.rank_report.bounds import MAX_NAME
from otel_fr_collector.jobs.bounded import Cache, CacheBudget
from otel_fr_collector.jobs.run import RunId

MAX_RESOURCE = 256 << 10
"""Bytes of a resource; the attributes of a process, with its command line, are a few kilobytes."""
MAX_ATTRIBUTES = 1_024
SOURCE_BYTES = 460
"""Bytes of a cached source without its texts, measured with tracemalloc."""

_PLACE = (names.HOST_NAME, names.GPU, names.K8S_POD_NAME, names.K8S_NODE_NAME, names.K8S_NAMESPACE)
_TEXTS = frozenset({names.JOB_ID, names.RUN_ID, names.SERVICE_NAME, names.REPLICA_ID, *_PLACE})
_NUMBERS = frozenset({names.RANK, names.JOB_ATTEMPT, names.WORLD_SIZE, names.LOCAL_RANK, names.PROCESS_PID})
_KEPT = (names.SERVICE_NAME, names.JOB_ID, names.RUN_ID)


class SourceError(ValueError):
    """A resource cannot be read, or is ambiguous about its sender."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The rank and run that a resource names, with their other attributes."""

    run: RunId
    rank: int
    world_size: int | None = None
    place: Place = UNPLACED
    replica: str = ""
    resource: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def host(self) -> str:
        return self.place.host


@dataclass(frozen=True, slots=True)
class Source:
    """The sender of telemetry, from its resource.

    Attributes:
        job: the job that a token must be valid for. It is the job id, as in ``origin``. For telemetry that does not
            come from a rank and has no job id, it is the service's name.
        origin: None: the telemetry does not come from a rank.
    """

    job: str
    origin: Origin | None


def make_run_id(job: str, attempt: int, run: str) -> RunId:
    """A run's identity as its ranks send it. Without a run id, it is made from the job and the attempt."""
    job, run = job[:MAX_NAME], run[:MAX_NAME]
    return RunId(job, attempt, run or f"{job}/{attempt}")


def read_source(resource: Resource) -> Source:
    """Read the sender from a resource.

    OpenTelemetry requires unique keys and leaves open which of several values counts. Here, the first one does. If a
    token is checked for the value, several values are an error, because a backend may read another one.

    Raises:
        SourceError: the key that a token is checked for has several values, or the job id is not text.
    """
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    first: dict[str, AnyValue] = {}
    ambiguous: set[str] = set()
    for item in resource.attributes:
        key = item.key
        if key not in _TEXTS and key not in _NUMBERS:
            continue
        value = item.value
        kind = value.WhichOneof("value")
        known = first.setdefault(key, value)
        if known is not value and known != value:
            ambiguous.add(key)
        elif kind == "string_value" and key in _TEXTS:
            texts[key] = value.string_value[:MAX_NAME]
        elif kind == "int_value" and key in _NUMBERS:
            numbers[key] = value.int_value
        elif key == names.JOB_ID:
            raise SourceError(f"a resource has a {key} that is not text")
    job, rank = texts.get(names.JOB_ID, ""), numbers.get(names.RANK)
    is_rank = rank is not None and 0 <= rank <= MAX_RANK
    decisive = names.JOB_ID if job or is_rank else names.SERVICE_NAME
    for key in ambiguous & {names.JOB_ID, decisive}:
        raise SourceError(f"a resource has several values of {key}")
    if rank is None or not is_rank:
        return Source(job or texts.get(names.SERVICE_NAME, ""), None)
    run = make_run_id(job, numbers.get(names.JOB_ATTEMPT, 0), texts.get(names.RUN_ID, ""))
    world = numbers.get(names.WORLD_SIZE)
    world = world if world is not None and 0 < world <= MAX_RANK + 1 else None
    kept = {key: texts[key] for key in _KEPT if key in texts}
    host, gpu, pod, node, namespace = (texts.get(name, "")[:MAX_HOST] for name in _PLACE)
    place = Place(host, numbers.get(names.PROCESS_PID), numbers.get(names.LOCAL_RANK), gpu, pod, node, namespace)
    replica = texts.get(names.REPLICA_ID, "")[:MAX_HOST]
    return Source(run.job, Origin(run, rank, world, place, replica, kept))


_OfRun = tuple[RunId, dict[str, str]]


def _weight(_: bytes, source: Source) -> int:
    """Bytes of one entry of `Sources`, without what the ranks of a run share."""
    origin = source.origin
    if origin is None:
        return SOURCE_BYTES + getsizeof(source.job)
    place = origin.place
    texts = (place.host, place.gpu, place.pod, place.node, place.namespace, origin.replica)
    return SOURCE_BYTES + sum(getsizeof(text) for text in texts if text)


class Sources:
    """Caches sources by a digest of the resource's bytes: a monitor sends the same ones with every request.

    What all ranks of a run have in common is kept once, so that a generation of the cache has room for the ranks of the
    largest run: reading a resource takes longer than everything else about a brief report.
    """

    def __init__(self, budget: CacheBudget) -> None:
        self._known: Cache[bytes, Source] = Cache(budget, _weight)
        self._runs: Cache[tuple[RunId, tuple[tuple[str, str], ...]], _OfRun] = Cache(
            budget, lambda key, _: SOURCE_BYTES + 2 * sum(map(getsizeof, (key[0].job, key[0].run, *chain(*key[1]))))
        )

    def read(self, resource: bytes) -> Source:
        """As `read_source`, from the resource's bytes.

        Raises:
            SourceError: as `read_source`; or the bytes are too large, or not a resource.
        """
        digest = blake2b(resource, digest_size=16).digest()
        known = self._known.get(digest)
        if known is None:
            if len(resource) > MAX_RESOURCE:
                raise SourceError(f"a resource is larger than {MAX_RESOURCE} bytes")
            try:
                decoded = Resource.FromString(resource)
            except DecodeError as error:
                raise SourceError("a resource cannot be decoded") from error
            if len(decoded.attributes) > MAX_ATTRIBUTES:
                raise SourceError(f"a resource has more than {MAX_ATTRIBUTES} attributes")
            known = self._known.put(digest, self._shared(read_source(decoded)))
        return known

    def _shared(self, source: Source) -> Source:
        origin = source.origin
        if origin is None:
            return source
        key = origin.run, tuple(origin.resource.items())
        run, resource = self._runs.get(key) or self._runs.put(key, (origin.run, origin.resource))
        return Source(run.job, replace(origin, run=run, resource=resource))
