"""Why requests are rejected, and what their clients receive."""

from __future__ import annotations

from enum import Enum

from otel_fr_collector.otlp import status as otlp_status


class Reason(Enum):
    """Why a request is rejected. The value is the label in metrics and the google.rpc.Code of the response."""

    UNAUTHENTICATED = "unauthenticated", otlp_status.UNAUTHENTICATED
    DENIED = "denied", otlp_status.PERMISSION_DENIED
    MALFORMED = "malformed", otlp_status.INVALID_ARGUMENT
    TOO_LARGE = "too_large", otlp_status.RESOURCE_EXHAUSTED
    TOO_SLOW = "too_slow", otlp_status.DEADLINE_EXCEEDED
    UNSUPPORTED = "unsupported", otlp_status.UNIMPLEMENTED
    CAPACITY = "capacity", otlp_status.UNAVAILABLE
    CLIENT_LIMIT = "client_limit", otlp_status.UNAVAILABLE
    GAVE_WAY = "gave_way", otlp_status.UNAVAILABLE
    INTERNAL = "internal", otlp_status.INTERNAL

    def __init__(self, label: str, code: int) -> None:
        self.label = label
        self.code = code


class RejectedError(Exception):
    """A request is rejected. The text is the reason that the client receives.

    Attributes:
        delay: seconds after which the client should retry. None: it should not.
    """

    def __init__(self, reason: Reason, text: str, delay: float | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.delay = delay

    def strip(self) -> RejectedError:
        """Drop the traceback and the cause, which would keep the request's bytes until the next garbage collection."""
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self

    @property
    def code(self) -> int:
        """The google.rpc.Code of the response."""
        return self.reason.code


def malformed(text: str) -> RejectedError:
    """The error for a request that cannot be read."""
    return RejectedError(Reason.MALFORMED, text)


def retry(reason: Reason, text: str) -> RejectedError:
    """The error for a request that the client may send again after 1 to 3 s."""
    return RejectedError(reason, text, otlp_status.retry_delay())


def gave_way() -> RejectedError:
    """The error for a request that was ended to make room for another tenant's or address's requests."""
    return retry(Reason.GAVE_WAY, "in-flight limit reached: this request was rejected in favour of others")
