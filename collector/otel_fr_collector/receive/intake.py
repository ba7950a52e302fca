"""What both doors for telemetry, gRPC and HTTP, do with a request: who sends it, is there room, take it in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from otel_fr_collector.forward.spool import SpoolError
from otel_fr_collector.network.tokens import EVERYTHING, Access, Tokens
from otel_fr_collector.otlp import partial
from otel_fr_collector.otlp import status as otlp_status
from otel_fr_collector.otlp.signals import LOGS, MalformedError
from otel_fr_collector.receive.inflate import CorruptError, Inflater
from otel_fr_collector.service import Service

_log = logging.getLogger(__name__)

MAX_REQUEST = 64 * 1024 * 1024
"""Largest request, before and after decompression: the size OTLP recommends."""
MAX_CALLS = 4_096
"""Requests in work, and on their way in, over all clients."""
LANES = 16
"""Requests that are decoded and correlated at once. Rank reports need no lane: they are small and alarms need them."""
READ_SECONDS = 30.0
"""For a request to arrive once it has been announced."""
_MAX_CLIENTS = 10_000
_BURST_SECONDS = 5.0


class RejectedError(Exception):
    """A request that is not taken.

    Attributes:
        code: google.rpc.Code.
        delay: seconds after which the client should come back; None: it should not.
    """

    def __init__(self, code: int, text: str, delay: float | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.delay = delay


@dataclass(frozen=True)
class Limits:
    """See the options of the same names."""

    max_request_size: int = MAX_REQUEST
    max_queue_size: int = 4 * MAX_REQUEST
    client_queue_size: int = 2 * MAX_REQUEST
    client_rate: float = 0.0
    client_connections: int = 16_384


class Call:
    """One request on its way in."""

    def __init__(self, intake: Intake, client: str, access: Access, signal: str | None) -> None:
        self._intake = intake
        self.client = client
        self.access = access
        self.signal = signal
        self.size = 0
        self._pieces: list[bytes] = []

    def hold(self, size: int) -> None:
        """So many bytes more have arrived.

        Raises:
            RejectedError: the request is too large, or there is no room for it now. What has arrived is let go.
        """
        self.size += size
        try:
            self._intake.hold(self, size)
        except RejectedError:
            self._pieces.clear()  # now, not when the last trace of the error is gone
            raise

    def add(self, piece: bytes) -> None:
        """Keep what has arrived; raises as `hold`."""
        self.hold(len(piece))
        self._pieces.append(piece)

    async def inflate(self, inflater: Inflater, data: bytes) -> None:
        """Keep what has arrived, decompressed.

        Raises:
            RejectedError: as `hold`; or it is not compressed as it should be.
        """
        try:
            for piece in inflater.feed(data):
                self.add(piece)
                await asyncio.sleep(0)
        except CorruptError as error:
            raise self.malformed(str(error)) from error

    def body(self, inflater: Inflater | None) -> bytes:
        """All that has been kept; raises RejectedError if compressed data is missing at the end."""
        try:
            if inflater is not None:
                inflater.finish()
        except CorruptError as error:
            raise self.malformed(str(error)) from error
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data

    def malformed(self, text: str) -> RejectedError:
        """Count a request whose bytes cannot be read."""
        return self._intake.malformed(self.signal, text)


class Intake:
    """The bounded work queue between receiving and correlating.

    Args:
        tokens: who is let in; None: everybody.
        clock: monotonic seconds.
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
        self._calls = self._bytes = 0
        self._client_calls: dict[str, int] = {}
        self._client_bytes: dict[str, int] = {}
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lanes = asyncio.Semaphore(LANES)
        self._metrics.watch_intake(lambda: self._calls, lambda: self._bytes)

    @contextlib.contextmanager
    def call(self, client: str, authorization: str, signal: str | None) -> Iterator[Call]:
        """Hold a place for one call; bytes are announced to it as they arrive.

        Args:
            client: its address, without a port.
            authorization: the header.
            signal: of an OTLP request, which counts against the queue and the rate; None: a control stream.

        Raises:
            RejectedError: it is not let in, or there is no room now.
        """
        access = self._authorise(authorization)
        own = self._client_calls.get(client, 0)
        if own >= self.limits.client_connections:
            raise self._turn_away("client", f"{own} calls of this client are in progress")
        if signal is not None:
            if self._calls >= MAX_CALLS or self._bytes >= self.limits.max_queue_size:
                raise self._turn_away("busy", "too many requests are in work")
            self._spend(client)
            self._calls += 1
        self._client_calls[client] = own + 1
        call = Call(self, client, access, signal)
        try:
            yield call
        finally:
            self._calls -= signal is not None
            self._bytes -= call.size
            _subtract(self._client_calls, client, 1)
            _subtract(self._client_bytes, client, call.size)

    def hold(self, call: Call, size: int) -> None:
        """See `Call.hold`."""
        self._bytes += size
        own = self._client_bytes[call.client] = self._client_bytes.get(call.client, 0) + size
        limits = self.limits
        if call.size > limits.max_request_size:
            raise self.too_large(call.signal)
        if self._bytes > limits.max_queue_size and self._bytes > call.size:
            raise self._turn_away("busy", "too many bytes of requests are in work")
        if own > limits.client_queue_size and own > call.size:
            raise self._turn_away("client", "too many bytes of this client's requests are in work")

    async def take(self, call: Call, signal: str, data: bytes) -> bytes:
        """Take one request in; returns the response's bytes.

        Raises:
            RejectedError: it is not taken.
        """
        try:
            if call.access.prefix:
                self._check_jobs(call.access, data)
            if signal == LOGS:
                return await self._service.take(signal, data)
            async with self._lanes:
                return await self._service.take(signal, data)
        except MalformedError as error:
            raise RejectedError(otlp_status.INVALID_ARGUMENT, str(error)) from error
        except SpoolError as error:
            raise RejectedError(
                otlp_status.UNAVAILABLE, "the request cannot be stored now", otlp_status.retry_delay()
            ) from error
        except RejectedError:
            raise
        except Exception as error:  # one client's odd data must not cost the others their collector
            self._metrics.errors.labels("ingest").inc()
            _log.exception("a request could not be taken in")
            raise RejectedError(otlp_status.INTERNAL, "the request could not be taken in") from error

    def malformed(self, signal: str | None, text: str) -> RejectedError:
        """Count a request that cannot be read."""
        self._metrics.requests.labels(signal or "", "malformed").inc()
        return RejectedError(otlp_status.INVALID_ARGUMENT, text)

    def too_large(self, signal: str | None) -> RejectedError:
        """Count a request that is refused for its size."""
        self._metrics.requests.labels(signal or "", "too_large").inc()
        return RejectedError(
            otlp_status.RESOURCE_EXHAUSTED, f"the request is larger than {self.limits.max_request_size} bytes"
        )

    def check_job(self, access: Access, job: str) -> None:
        """Raises RejectedError if a token is not for this job."""
        if not access.may_send(job):
            self._metrics.turned_away.labels("denied").inc()
            raise RejectedError(
                otlp_status.PERMISSION_DENIED,
                f"the token is for jobs that begin with {access.prefix!r}, not for {job[:200]!r}",
            )

    def _check_jobs(self, access: Access, data: bytes) -> None:
        for job in set(partial.job_names(data)):
            self.check_job(access, job)

    def _authorise(self, authorization: str) -> Access:
        if self.tokens is None:
            return EVERYTHING
        access = self.tokens.find(authorization)
        if access is None:
            self._metrics.turned_away.labels("unauthenticated").inc()
            text = "the token is not known" if authorization else "a bearer token is needed"
            raise RejectedError(otlp_status.UNAUTHENTICATED, text)
        if not access.write:
            self._metrics.turned_away.labels("denied").inc()
            raise RejectedError(otlp_status.PERMISSION_DENIED, "the token is for reading only")
        return access

    def _spend(self, client: str) -> None:
        """One request of a client's rate: a bucket that holds what may come in a few seconds."""
        rate = self.limits.client_rate
        if not rate:
            return
        now = self._clock()
        full = max(1.0, rate * _BURST_SECONDS)
        left, since = self._buckets.pop(client, (full, now))
        left = min(full, left + (now - since) * rate)
        if len(self._buckets) >= _MAX_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[client] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            raise self._turn_away("client", "this client sends too many requests", (1 - left) / rate)

    def _turn_away(self, reason: str, text: str, delay: float | None = None) -> RejectedError:
        self._metrics.turned_away.labels(reason).inc()
        return RejectedError(otlp_status.UNAVAILABLE, text, max(delay or 0.0, otlp_status.retry_delay()))


def _subtract(tally: dict[str, int], key: str, amount: int) -> None:
    left = tally.get(key, 0) - amount
    if left > 0:
        tally[key] = left
    else:
        tally.pop(key, None)
