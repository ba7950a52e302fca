"""Asks the collector what to do with a job that failed (docs/guide/fault-tolerance.md), in a process with a time limit.

It asks the ranks' OTLP endpoint over gRPC. If the ranks send over HTTP, or nowhere, it asks ``OTEL_FR_COLLECTOR``.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import grpc
from opentelemetry.sdk.resources import Resource as SdkResource

from otel_fr import semconv as names
from otel_fr.attribution.v1.attribution_pb2 import GetRequest, GetResponse
from otel_fr.checks.model import Outcome, Status
from otel_fr.config import CERTIFICATE_VARIABLE, COLLECTOR_VARIABLE, TOKEN_VARIABLE, has_endpoint
from otel_fr.otlp_sender import endpoint_address, grpc_target, protocol_of, sender_from_env
from otel_fr.redaction import hide_password

METHOD: Final = "/otel_fr.attribution.v1.Attribution/Get"
POLL_SECONDS: Final = 0.25
REQUEST_SECONDS: Final = 3.0
_TRY_AGAIN = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class NotOfferedError(Exception):
    """No collector can be asked. The text says why."""


class NotYetError(Exception):
    """There is no answer yet. The text says why."""


Ask = Callable[[], dict[str, Any]]
"""Asks once. Returns the answer in the form described in docs/guide/fault-tolerance.md.

Raises NotOfferedError, NotYetError.
"""


def find(job: str, seconds: float, seen: str, env: Mapping[str, str] = os.environ) -> Outcome:
    """Ask until the answer is about a new failure.

    Args:
        seconds: longest time to ask.
        seen: run id of the last answer, which does not count as new; empty: none.

    Returns:
        OK with JSON (`otel_fr.rendezvous.advice.Advice`), or SKIPPED with the reason why there is no advice.
    """
    try:
        ask = _over_grpc(job, env) or _over_http(job, env)
    except NotOfferedError as error:
        return Outcome(Status.SKIPPED, str(error))
    end = time.monotonic() + seconds
    reason = "no failure of its last run is known"
    while True:
        try:
            answer = ask()
        except NotOfferedError as error:
            return Outcome(Status.SKIPPED, str(error))
        except NotYetError as error:
            reason = str(error)
        else:
            if others := len(answer.get("other_runs") or ()):
                # It is unknown which run is this launcher's. The launcher must not follow advice about another job.
                reason = f"{others + 1} runs are called {job!r} at the same time: give each job a name of its own"
            elif answer["run_id"] != seen and (answer["failure"] or answer["recommendation"] != "restart"):
                return Outcome(Status.OK, json.dumps(_short(answer)))
        if time.monotonic() >= end:
            return Outcome(Status.SKIPPED, reason)
        time.sleep(POLL_SECONDS)


def _short(answer: Mapping[str, Any]) -> dict[str, object]:
    recommendation = answer["recommendation"]
    texts = [reason["text"] for reason in answer["reasons"] if reason["recommendation"] == recommendation]
    return {
        "run": answer["run_id"],
        "attempt": answer["attempt"],
        "recommendation": recommendation,
        "nodes": answer["exclude_nodes"],
        "is_here": _own_node() in answer["exclude_nodes"],
        "text": "; ".join(texts),
    }


def _own_node() -> str:
    """Return this node's name as used by the ranks' monitors."""
    return str(SdkResource.create().attributes.get(names.HOST_NAME) or socket.gethostname())


def _over_grpc(job: str, env: Mapping[str, str]) -> Ask | None:
    if not has_endpoint(env) or protocol_of("logs", env) != "grpc":
        return None
    target = grpc_target(sender_from_env("logs", env))
    if target is None:
        return None
    call = target.channel().unary_unary(
        METHOD, request_serializer=GetRequest.SerializeToString, response_deserializer=GetResponse.FromString
    )

    def ask() -> dict[str, Any]:
        try:
            return _as_json(call(GetRequest(job_id=job), metadata=target.headers, timeout=REQUEST_SECONDS))
        except grpc.RpcError as error:
            code, text = (error.code(), error.details()) if isinstance(error, grpc.Call) else (None, str(error))
            if code in _TRY_AGAIN:
                raise NotYetError(str(text)) from error
            if code is grpc.StatusCode.UNIMPLEMENTED:
                text = "the OTLP endpoint is not an otel-fr collector"
            if code is grpc.StatusCode.UNAUTHENTICATED:
                text = f"the OTLP endpoint does not accept the token in OTEL_EXPORTER_OTLP_HEADERS: {text}"
            raise NotOfferedError(str(text)) from error

    return ask


def _as_json(response: GetResponse) -> dict[str, Any]:
    return {
        "run_id": response.run_id,
        "attempt": response.attempt,
        "recommendation": response.recommendation,
        "exclude_nodes": list(response.exclude_nodes),
        "reasons": [{"recommendation": one.recommendation, "text": one.text} for one in response.reasons],
        "failure": {"incident_id": response.failures[0].incident_id} if response.failures else None,
        "other_runs": [one.run_id for one in response.other_runs],
    }


def _over_http(job: str, env: Mapping[str, str]) -> Ask:
    import urllib3

    base = env.get(COLLECTOR_VARIABLE, "").strip().rstrip("/")
    if not base:
        raise NotOfferedError(f"neither an OTLP endpoint over gRPC nor {COLLECTOR_VARIABLE} is set")
    token = env.get(TOKEN_VARIABLE, "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    shown = hide_password(base)
    try:
        endpoint_address(base)  # an error of urllib3 may quote a part of a password
    except ValueError as error:
        raise NotOfferedError(f"{shown} cannot be asked: {error}") from error
    http = urllib3.PoolManager(timeout=REQUEST_SECONDS, retries=False, ca_certs=env.get(CERTIFICATE_VARIABLE) or None)

    def ask() -> dict[str, Any]:
        try:
            response = http.request("GET", f"{base}/api/v1/attribution?{urlencode({'job': job})}", headers=headers)
            if response.status >= 500:  # the collector is busy, or a proxy waits for it
                raise NotYetError(f"{shown} answers with status {response.status}")
            answer: Any = json.loads(response.data)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NotYetError(hide_password(f"{base} cannot be reached: {error}")) from error
        except (ValueError, RecursionError) as error:
            raise NotOfferedError(f"{shown} is not an otel-fr collector") from error
        if response.status == 200 and isinstance(answer, dict):
            return answer
        text = answer.get("error", "") if isinstance(answer, dict) else ""
        if response.status == 401:
            raise NotOfferedError(f"{shown} does not accept the token in {TOKEN_VARIABLE}: {text}")
        raise (NotYetError if response.status == 404 else NotOfferedError)(f"status {response.status}: {text}")

    return ask
