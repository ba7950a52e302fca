"""Publishes what failed: lines on stderr, and an OTLP event if an endpoint is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from otel_fr.checks import runner
from otel_fr.checks.model import COLLECTOR, EVENT, Result, Status, Task
from otel_fr.config import Config, has_endpoint, is_enabled
from otel_fr.printable import one_line

EVENT_SECONDS: Final = 5.0
"""Longest time to send the event. The node stays out even if nobody accepts the event."""


def publish(results: Sequence[Result], env: Mapping[str, str] = os.environ) -> None:
    """Report failed checks and warnings, each as a line on stderr and an event. Takes at most `EVENT_SECONDS`."""
    shown = [result for result in results if result.status in (Status.FAILED, Status.WARNING)]
    for result in shown:
        what = "this node failed a check" if result.status is Status.FAILED else "warning"
        say(f"{what}: {result.line()}")
    sent = [result for result in shown if result.kind != COLLECTOR]  # nobody would accept that event
    if not sent or not is_enabled(env) or not has_endpoint(env):
        return
    rows = [(result.kind, result.target, result.status.value, result.text) for result in sent]
    arguments = {"results": rows, "job": Config.from_env(env).job_id}
    (outcome,) = runner.run([Task(EVENT, "", EVENT_SECONDS, arguments)], env)
    if outcome.status is Status.FAILED:
        say(f"could not send this as an OTLP event: {outcome.text}")


def say(text: str) -> None:
    """Print one line on stderr."""
    print(f"otel-fr: {one_line(text)}", file=sys.stderr, flush=True)
