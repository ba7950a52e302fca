"""Takes in each request of the gRPC and the OTLP/HTTP port: checks its token, and enforces the limits."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from otel_fr_collector.network.tokens import EVERYTHING, Access, Grant, Tokens
from otel_fr_collector.otlp.signals import LOGS, METHODS, MalformedError
from otel_fr_collector.otlp.wire import TooManyError
from otel_fr_collector.receive.in_flight import InFlight
from otel_fr_collector.receive.inflate import PIECE, CorruptError, Inflater
from otel_fr_collector.receive.rejections import Reason, RejectedError, gave_way, malformed, retry
from otel_fr_collector.receive.time_limit import take_back_cancellation
from otel_fr_collector.service import Service
from otel_fr_collector.shares import Owner
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

MAX_REQUEST = 16 * 1024 * 1024
"""Largest request in bytes, before and after decompression. An OpenTelemetry Collector accepts 4 MiB (gRPC) or 20 MiB
(HTTP)."""
MAX_REQUESTS = 4_096
"""Requests in flight, of all clients."""
PARALLEL = 16
"""Requests that are decoded and correlated at once. Requests with rank reports do not count: they are small, and alerts
need them."""
PARALLEL_REPORTS = 256
"""Requests with rank reports that are decoded and correlated at once. A waiting request can be ended for other
tenants."""
LARGE = 4 << 20
"""Requests larger than this, in bytes, are decoded one at a time: decoding takes as much memory again."""
READ_SECONDS = 30.0
"""Seconds in which a request must arrive once it has begun."""
_NO_WAIT = contextlib.nullcontext()
CONTROL = "control"
"""The signal of control streams in metrics."""
ATTRIBUTION = "attribution"
"""The signal of questions about a run in metrics."""


def too_slow() -> RejectedError:
    """The error for a request that has not arrived within `READ_SECONDS`."""
    return RejectedError(Reason.TOO_SLOW, f"the request did not arrive within {READ_SECONDS:.0f} s")


@dataclass(frozen=True)
class Limits:
    """Limits on requests.

    Attributes:
        max_request_size: bytes of one request.
        max_queue_size: bytes of all requests in flight.
        client_queue_size: bytes in flight from one client's address.
        client_connections: requests and control streams in flight, and HTTP connections, from one client's address.
    """

    max_request_size: int = MAX_REQUEST
    max_queue_size: int = 4 * MAX_REQUEST
    client_queue_size: int = 2 * MAX_REQUEST
    client_connections: int = 16_384


class IncomingRequest:
    """One request or control stream. It is in flight until its context ends.

    Attributes:
        client: the client's address, without a port.
        access: what the request's token allows.
        owner: the prefix of the token, and the client's address.
        gave_way: the request was ended to make room for another owner's request. Its task is cancelled.
        size: bytes of the request that are kept.
    """

    def __init__(self, intake: Intake, client: str, access: Access, authorization: str, signal: str) -> None:
        self._intake = intake
        self.client = client
        self.access = access
        self.owner = Owner(access.prefix, client)
        self.gave_way = False
        self._signal = signal
        self._task = _current_task()
        self._authorization = authorization
        self._tokens_version = intake.tokens_version
        self.size = 0
        self._body: io.BytesIO | None = None
        """Grows in place, and its value is not a copy. Joining a list of chunks would need twice the memory."""

    def __enter__(self) -> IncomingRequest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._intake.end(self)
        if isinstance(error, asyncio.CancelledError) and self.gave_way:
            take_back_cancellation(asyncio.current_task())
            self._intake.count_rejected(self._signal, Reason.GAVE_WAY)
            raise gave_way() from None
        if isinstance(error, RejectedError):
            self._intake.count_rejected(self._signal, error.reason)

    def check_token(self) -> None:
        """Raise RejectedError if the token was revoked or changed while the request arrived."""
        version = self._intake.tokens_version
        if version != self._tokens_version and self._intake.authorise(self._authorization) != self.access:
            raise RejectedError(Reason.UNAUTHENTICATED, "the rights of the token have changed")
        self._tokens_version = version

    def hold(self, size: int) -> None:
        """Count bytes that have arrived.

        Raises:
            RejectedError: the request is too large, or another limit is reached. The bytes that were kept are freed.
        """
        try:
            self._intake.hold(self, size)
        except RejectedError:
            self._body = None  # frees it now: a traceback may keep this object for longer
            raise

    def release(self) -> None:
        """Stop counting the bytes, because they are no longer kept."""
        self._intake.release(self)
        self.size = 0

    def give_way(self) -> bool:
        """End the request and free its bytes to make room for another owner. Return False if it cannot be ended."""
        if self._task is None:
            return False
        self.gave_way = True
        self._body = None
        self._intake.give_way(self)
        self._task.cancel()
        return True

    def add(self, chunk: bytes) -> None:
        """Keep a chunk that has arrived. Raises like `hold`."""
        self.hold(len(chunk))
        if self._body is None:
            self._body = io.BytesIO()
        self._body.write(chunk)

    async def inflate(self, inflater: Inflater, data: bytes) -> None:
        """Decompress and keep data that has arrived.

        Raises:
            RejectedError: as in `hold`, or the data cannot be decompressed with its encoding.
        """
        try:
            for chunk in inflater.feed(data):
                self.add(chunk)
                await (self._intake.turns.wait() if self.size > PIECE else asyncio.sleep(0))
        except CorruptError as error:
            raise malformed(str(error)) from error

    def body(self, inflater: Inflater | None) -> bytes:
        """Return everything that was kept. Raises RejectedError if compressed data ends too early."""
        try:
            if inflater is not None:
                inflater.finish()
        except CorruptError as error:
            raise malformed(str(error)) from error
        kept, self._body = self._body, None
        return b"" if kept is None else kept.getvalue()


class Intake:
    """Enforces the limits on requests in flight, and passes requests on to the service.

    Args:
        tokens: accepted tokens. None: no authentication.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        service: Service,
        limits: Limits | None = None,
        tokens: Tokens | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or Limits()
        self.tokens = tokens
        self._service = service
        self._clock = clock
        self._metrics = service.metrics
        self._in_flight = InFlight(MAX_REQUESTS, self.limits.max_queue_size)
        self._client_requests: dict[str, int] = {}
        self._client_bytes: dict[str, int] = {}
        self._parallel, self._parallel_reports = asyncio.Semaphore(PARALLEL), asyncio.Semaphore(PARALLEL_REPORTS)
        self._large = asyncio.Lock()
        self.turns = service.ingest.turns
        self._log = Throttle()
        self._waiting: dict[IncomingRequest, float] = {}
        """Requests with reports that wait for their turn, the oldest first, with the monotonic time since when."""
        service.runs.attention.waiting = self._oldest_wait
        self._metrics.watch_intake(lambda: self._in_flight.count, lambda: self._in_flight.size)

    def admit(self, client: str, authorization: str, signal: str) -> IncomingRequest:
        """Admit one request. The caller adds its bytes as they arrive. It is in flight until its context ends.

        Rejections here and in the context are counted.

        Args:
            client: the client's address, without a port.
            authorization: the Authorization header.
            signal: what the request carries. Only OTLP's signals count against the limit on requests.

        Raises:
            RejectedError: the request is not allowed, or a limit is reached.
        """
        try:
            return self._begin(client, authorization, signal)
        except RejectedError as error:
            self.count_rejected(signal, error.reason)
            raise

    def count_rejected(self, signal: str, reason: Reason) -> None:
        """Count a rejected request. ``signal``: as in `admit`."""
        self._metrics.requests_rejected.labels(signal, reason.label).inc()

    def _begin(self, client: str, authorization: str, signal: str) -> IncomingRequest:
        access = self.authorise(authorization)
        own = self._client_requests.get(client, 0)
        if own >= self.limits.client_connections:
            raise retry(Reason.CLIENT_LIMIT, f"this client has reached its limit of {own} open requests and streams")
        request = IncomingRequest(self, client, access, authorization, signal)
        if signal in METHODS and not self._in_flight.add(request):
            raise self._full("requests", request)
        self._client_requests[client] = own + 1
        return request

    def end(self, request: IncomingRequest) -> None:
        """Remove a request that is no longer in flight."""
        _subtract(self._client_requests, request.client, 1)
        request.release()
        self._in_flight.remove(request)

    def release(self, request: IncomingRequest) -> None:
        """See `IncomingRequest.release`."""
        self._in_flight.shrink(request)
        _subtract(self._client_bytes, request.client, request.size)

    def give_way(self, request: IncomingRequest) -> None:
        """See `IncomingRequest.give_way`."""
        request.release()
        self._in_flight.remove(request)
        if self._log.allows("gave way"):
            _log.warning(
                "in-flight limit reached: rejecting requests of client %s (token for %s)",
                *(request.client, _jobs_of(request.access)),
            )

    def _full(self, what: str, request: IncomingRequest) -> RejectedError:
        if self._log.allows("full"):
            _log.warning(
                "in-flight limit reached (%s): rejecting requests of client %s (token for %s)",
                *(what, request.client, _jobs_of(request.access)),
            )
        return retry(Reason.CAPACITY, f"too many {what} are in flight")

    def hold(self, request: IncomingRequest, size: int) -> None:
        """See `IncomingRequest.hold`."""
        if request.gave_way:
            raise gave_way()
        own = self._client_bytes.get(request.client, 0) + size
        limits = self.limits
        if request.size + size > limits.max_request_size:
            raise self.too_large()
        if own > limits.client_queue_size and own > request.size + size:
            raise retry(Reason.CLIENT_LIMIT, "too many bytes of this client's requests are in flight")
        if not self._in_flight.grow(request, size):
            raise self._full("bytes of requests", request)
        request.size += size
        self._client_bytes[request.client] = own

    async def take(self, request: IncomingRequest, signal: str, data: bytes) -> bytes:
        """Decode and correlate one request. Return the response's bytes.

        Raises:
            RejectedError: the request is not accepted.
        """
        is_large = len(data) > LARGE
        try:
            parallel = self._parallel_reports if signal == LOGS else self._parallel
            if signal == LOGS and not is_large:
                self._waiting[request] = self._clock()
            async with self.one_at_a_time(is_large), parallel:
                self._waiting.pop(request, None)
                if request.gave_way:
                    raise gave_way()
                self._in_flight.settle(request)
                request.check_token()
                response = await self._service.take(signal, data, self._check_of(request.access))
        except (MalformedError, TooManyError) as error:
            # Not `raise from`: the error's traceback would keep everything that was decoded of the request.
            reason = Reason.MALFORMED if isinstance(error, MalformedError) else Reason.TOO_LARGE
            problem = str(error)
        except RejectedError:
            raise
        except Exception as error:  # one client's unexpected data must not end the collector
            self._metrics.errors.labels("ingest").inc()
            _log.exception("could not process a request")
            raise RejectedError(Reason.INTERNAL, "the request could not be processed") from error
        else:
            return response
        finally:
            self._waiting.pop(request, None)
        raise RejectedError(reason, problem)

    def _oldest_wait(self) -> float:
        oldest = next(iter(self._waiting.values()), None)
        return 0.0 if oldest is None else self._clock() - oldest

    def one_at_a_time(self, is_large: bool) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait until no other large request is being decoded. A request that is not large does not wait."""
        return self._large if is_large else _NO_WAIT

    def grant(
        self, authorization: str, access: Access, end: Callable[[], None]
    ) -> contextlib.AbstractContextManager[Grant]:
        """See `Tokens.grant`. Without tokens, the grant is never revoked."""
        if self.tokens is None:
            return contextlib.nullcontext(Grant(end))
        return self.tokens.grant(authorization, access, end)

    def too_large(self) -> RejectedError:
        """The error for a request that is larger than `Limits.max_request_size`."""
        return RejectedError(Reason.TOO_LARGE, f"the request is larger than {self.limits.max_request_size} bytes")

    def check_job(self, access: Access, job: str) -> None:
        """Raise RejectedError if a token is not for this job."""
        if not access.may_send(job):
            raise RejectedError(
                Reason.DENIED, f"the token is for jobs that begin with {access.prefix!r}, not for {job[:200]!r}"
            )

    def _check_of(self, access: Access) -> Callable[[str], None] | None:
        return functools.partial(self.check_job, access) if access.prefix else None

    @property
    def tokens_version(self) -> int:
        """See `Tokens.version`."""
        return 0 if self.tokens is None else self.tokens.version

    def authorise(self, authorization: str) -> Access:
        """Return what the header allows a sender. Raises RejectedError if it allows nothing."""
        if self.tokens is None:
            return EVERYTHING
        access = self.tokens.find(authorization)
        if access is None:
            text = "the token is not known" if authorization else "a bearer token is required"
            raise RejectedError(Reason.UNAUTHENTICATED, text)
        if not access.write:
            raise RejectedError(Reason.DENIED, "the token is read-only")
        return access


def _jobs_of(access: Access) -> str:
    return f"jobs that begin with {access.prefix!r}" if access.prefix else "all jobs"


def _current_task() -> asyncio.Task[object] | None:
    """Return the current task. None: there is none, so the request cannot be cancelled."""
    with contextlib.suppress(RuntimeError):
        return asyncio.current_task()
    return None


def _subtract(tally: dict[str, int], key: str, amount: int) -> None:
    left = tally.get(key, 0) - amount
    if left > 0:
        tally[key] = left
    else:
        tally.pop(key, None)
