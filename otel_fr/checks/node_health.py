"""Asks the node's own health service, like nvidia-resiliency-ext: with one gRPC call over a Unix socket."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Final

import grpc

from otel_fr.checks.model import Outcome, Status
from otel_fr.checks.v1.node_health_pb2 import NodeHealthRequest, NodeHealthResponse

METHOD: Final = "/nvhcd.HealthCheckService/RunHealthCheck"
_MAX_TEXT: Final = 500


def check_node_health(socket_path: str, arguments: Sequence[str], timeout: float) -> Outcome:
    """Ask the service that listens at ``socket_path``, for at most ``timeout`` seconds.

    A service that does not exist, or cannot be reached, is no failure of the node. nvidia-resiliency-ext also ignores
    it.
    """
    if not os.path.exists(socket_path):
        return Outcome(Status.WARNING, "no such socket: the node health service is not running")
    try:
        with grpc.insecure_channel(f"unix:{socket_path}") as channel:
            call = channel.unary_unary(
                METHOD,
                request_serializer=NodeHealthRequest.SerializeToString,
                response_deserializer=NodeHealthResponse.FromString,
            )
            answer = call(NodeHealthRequest(args=arguments), timeout=timeout)
    except grpc.RpcError as error:
        code = error.code() if isinstance(error, grpc.Call) else None
        reason = error.details() if isinstance(error, grpc.Call) else str(error)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Outcome(Status.FAILED, f"no answer in {timeout:g} s")
        return Outcome(Status.WARNING, f"cannot ask the node health service: {reason}"[:_MAX_TEXT])
    return judge(answer)


def judge(answer: NodeHealthResponse) -> Outcome:
    """Judge an answer by the script's exit status and the number of failed checks in its output."""
    if not answer.success:
        text = answer.error or answer.output or "no reason given"
        return Outcome(Status.FAILED, f"exit status {answer.exit_code}: {text}"[:_MAX_TEXT])
    try:
        output: Any = json.loads(answer.output or "{}")
    except ValueError:
        return Outcome(Status.FAILED, f"its output is not JSON: {answer.output}"[:_MAX_TEXT])
    count = output.get("fail_count", 0) if isinstance(output, dict) else None
    if count != 0:
        failed = output.get("failed_checks", []) if isinstance(output, dict) else output
        return Outcome(Status.FAILED, f"{count} checks failed: {json.dumps(failed)}"[:_MAX_TEXT])
    return Outcome(Status.OK, "healthy")
