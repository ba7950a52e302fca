"""The definitions of all metrics: one table, from which /metrics and docs/reference/metrics.md are made.

The prefix ``otel_fr_collector_`` is for the collector's own state, ``otel_fr_`` alone for what it knows about the jobs.
Names follow Prometheus's practices (prometheus.io/docs/practices/naming) and pair up as in the OpenTelemetry
Collector: accepted and rejected, enqueued and sent and dropped, what is in use and its capacity.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from otel_fr.match import Category

M = TypeVar("M")


@dataclass(frozen=True)
class Label:
    """A label, with all its ``values`` if they are known beforehand."""

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Family:
    """One metric family.

    Attributes:
        name: as /metrics serves it; a counter's without ``_total``.
        unit: of its values.
        text: what it counts or measures.
        act: when an operator should act, and how; empty: never on this alone.
        needs: the option without which it is not served; empty: none.
    """

    name: str
    type: Literal["counter", "gauge", "summary", "histogram"]
    unit: str
    text: str
    act: str = ""
    labels: tuple[Label, ...] = ()
    needs: str = ""

    @property
    def help(self) -> str:
        """The HELP text of /metrics."""
        return f"{self.text} {self.act}".strip()

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)


def _counter(name: str, unit: str, text: str, *labels: Label, act: str = "", needs: str = "") -> Family:
    return Family(name=name, type="counter", unit=unit, text=text, act=act, labels=labels, needs=needs)


def _gauge(name: str, unit: str, text: str, *labels: Label, act: str = "", needs: str = "") -> Family:
    return Family(name=name, type="gauge", unit=unit, text=text, act=act, labels=labels, needs=needs)


def _summary(name: str, unit: str, text: str, *labels: Label, act: str = "") -> Family:
    return Family(name=name, type="summary", unit=unit, text=text, act=act, labels=labels)


def _histogram(name: str, unit: str, text: str, *labels: Label, act: str = "") -> Family:
    return Family(name=name, type="histogram", unit=unit, text=text, act=act, labels=labels)


_JOB = Label("job_id")
_GROUP = Label("process_group")
_RANK = Label("rank")
_SERIES = (_JOB, _GROUP, Label("operation"), Label("backend"), Label("dtype"), Label("size"))
_SENT = "summed over the ranks"
_OF_DEVICE = "Only for NCCL with TORCH_NCCL_ENABLE_TIMING."
_CATEGORY = Label("category", tuple(category.value for category in Category))
_SIGNALS = ("traces", "metrics", "logs")
_SIGNAL = Label("signal", _SIGNALS)
_REJECTED = ("unauthenticated", "denied", "malformed", "too_large", "too_slow", "unsupported")
_NOT_NOW = ("capacity", "client_limit", "gave_way", "internal")
_BACKEND = Label("backend")
_DROPPED_REASONS = ("queue_full", "expired", "rejected", "retries_exhausted", "shutdown")
_OUTLET = Label("outlet")
_PARTS = ("ingest", "judge", "housekeeping", "publish", "control", "forward", "delivery", "incidents_file", "store")
_DELIVERY = "--alertmanager, --webhook or --grafana"

_WAITS_SAMPLED = "In groups with more than 16 collectives a second, one in 4 is measured and counts as 4."

_JOBS = (
    _gauge(
        "otel_fr_incidents_open",
        "incidents",
        "Firing incidents, without consequences of other incidents.",
        *(_JOB, _GROUP, _CATEGORY),
        act="Act when it is above 0: follow the runbook of the category.",
    ),
    _gauge(
        "otel_fr_incidents_alerting",
        "incidents",
        "Incidents to act on: no consequences, and no waits shorter than --alert-after.",
        *(_JOB, _GROUP, _CATEGORY),
        act="Act when it is above 0 and the collector posts no alerts (TorchDistributedIncidentOpen).",
    ),
    _gauge(
        "otel_fr_progress_lag",
        "collectives",
        "Collectives between the first and the last member of a process group.",
        *(_JOB, _GROUP),
        act="A lag that comes and goes is normal. A lag that only grows shows a rank that fell behind.",
    ),
    _gauge(
        "otel_fr_straggler_wait_ratio",
        "0 to 1",
        "Share of the time that half of the process group waited for this rank, over the latest 64 blocks of 0.4 s that"
        " had waits of at least --straggler-seconds. Only for a rank that was late in 85 % of them, from 10 % on.",
        *(_JOB, _GROUP, _RANK),
        act="Act when it persists: the job loses this share of its time, and of each step.",
    ),
    _counter(
        "otel_fr_rank_waited_for_seconds",
        "seconds",
        "Time that half of the process group waited for this rank, which came last. Counts waits of 1 ms or more in"
        " operations that end on all ranks at once, unless the rank was late because a call of another group ended"
        f" late. A wait that has not ended counts from the stall time on. {_WAITS_SAMPLED}",
        *(_JOB, _GROUP, _RANK),
        act="Its rate is the share of the time lost to the rank. Every job has some waits.",
    ),
)
_NUMBERS = (
    _counter("otel_fr_collective_calls", "calls", f"Calls that ended, {_SENT}.", *_SERIES),
    _counter("otel_fr_collective_bytes", "bytes", f"Size of these calls, {_SENT}.", *_SERIES),
    _histogram(
        "otel_fr_collective_duration_seconds",
        "seconds",
        f"Time from enqueueing a call to its end, including the wait for other ranks, {_SENT}. OpenMetrics adds the"
        " span of a slow call as exemplar.",
        *_SERIES,
    ),
    _histogram(
        "otel_fr_collective_device_delay_seconds",
        "seconds",
        f"Time from enqueueing a call to its start on the device, up to 0.1 s late. {_OF_DEVICE}",
        *_SERIES,
        act="Act when it grows: the devices are behind their hosts, or an earlier call blocks them.",
    ),
    _histogram(
        "otel_fr_collective_device_duration_seconds",
        "seconds",
        "Time on the device, by its clock, including the wait for other ranks. Only for NCCL with"
        " TORCH_NCCL_ENABLE_TIMING or NCCL Inspector.",
        *_SERIES,
    ),
    _gauge(
        "otel_fr_collective_bus_bandwidth_bytes_per_second",
        "bytes per second",
        "Bus bandwidth as in nccl-tests (busbw), over the latest 30 s: size by duration on the member that spent the"
        " least time in these calls, times the factor for operation and group size. Uses the devices' times, if known.",
        *_SERIES,
        act="Act when it falls for the same size: compare it with nccl-tests on the same machines.",
    ),
    _histogram(
        "otel_fr_step_duration_seconds",
        "seconds",
        f"Duration of the training steps of each rank, {_SENT}.",
        _JOB,
    ),
)
_REQUESTS = (
    _counter(
        "otel_fr_collector_requests_rejected",
        "requests",
        "OTLP requests, control streams and attribution requests refused with an error status.",
        *(Label("signal", (*_SIGNALS, "control", "attribution")), Label("reason", (*_REJECTED, *_NOT_NOW))),
        act="Act on unauthenticated and denied: those jobs are not watched (OtelFrRequestsRejected). Clients retry"
        " after capacity, client_limit and gave_way: act if these last for minutes. gave_way: too much was in"
        " flight, and this tenant and address had the most.",
    ),
    _gauge(
        "otel_fr_collector_requests_in_flight",
        "requests",
        "OTLP requests being received, correlated or written to the forward queue.",
    ),
    _gauge(
        "otel_fr_collector_requests_in_flight_bytes",
        "bytes",
        "Size of the OTLP requests in flight.",
        act="Act when it stays near --max-queue-size: the collector, or its disk, is too slow.",
    ),
    _counter(
        "otel_fr_collector_items_received",
        "spans, log records, metrics",
        "Spans, log records and metrics received: from otel-fr, from other software, or invalid.",
        *(_SIGNAL, Label("kind", ("otel_fr", "other", "invalid"))),
        act="Act on invalid: an OpenTelemetry Collector on the way may alter telemetry. Act when otel_fr does not grow"
        " while jobs run: their telemetry does not arrive.",
    ),
    _counter(
        "otel_fr_collector_rank_reports",
        "reports",
        "Rank reports: accepted, late (a newer one came first, or there was no room for the rank), or invalid.",
        Label("outcome", ("accepted", "late", "invalid")),
        act="Act on invalid: otel-fr in the jobs is newer than the collector (OtelFrReportsInvalid).",
    ),
)
_JUDGING = (
    _counter(
        "otel_fr_collector_disagreements",
        "questions",
        "Times that ranks were asked for their calls because their fingerprints differed, by outcome.",
        Label("outcome", ("mismatch", "none", "undecided")),
        act="Act on undecided: the log says why, such as monitors without a control stream.",
    ),
    _summary(
        "otel_fr_collector_judgement_duration_seconds",
        "seconds",
        "Judgements of runs, and the time they took.",
        act="Act when its sum grows by more than 0.5 per second: verdicts come late (OtelFrCollectorBusy).",
    ),
    _counter(
        "otel_fr_collector_internal_errors",
        "errors",
        "Faults of the collector itself.",
        Label("part", _PARTS),
        act="Act when it grows: the log has the stack (OtelFrCollectorFault).",
    ),
)
_MEMORY = (
    _gauge("otel_fr_collector_ranks", "ranks", "Ranks in memory."),
    _gauge("otel_fr_collector_control_streams", "streams", "Open control streams, one for each machine of a run."),
    _gauge("otel_fr_collector_pending_calls", "calls", "Calls of incomplete collectives in memory."),
    _gauge(
        "otel_fr_collector_behind_seconds",
        "seconds",
        "Delay of incoming rank reports, in the run where it is longest; at most 30. It delays verdicts.",
        act="Act when it stays above a few seconds: the collector needs more CPU, or a gateway delays requests.",
    ),
    _counter(
        "otel_fr_collector_evicted",
        "by kind",
        "Runs, incomplete collectives (instances) and their calls removed from memory at a limit.",
        Label("kind", ("runs", "instances", "calls")),
        act="Act when it grows for minutes: give the jobs to several collectors.",
    ),
    _counter(
        "otel_fr_collector_capacity_exceeded",
        "by kind",
        "Items refused because a limit was reached, by kind.",
        Label(
            "kind",
            ("runs", "ranks", "groups", "members", "progress", "waits", "numbers", "reported_calls", "incidents"),
        ),
        act="Act when it grows: verdicts may be missing (OtelFrCapacityExceeded).",
    ),
)
_FORWARDING = (
    _counter(
        "otel_fr_collector_forward_requests_sent",
        "requests",
        "Requests that a backend accepted.",
        *(_SIGNAL, _BACKEND),
        act="Act when it does not grow while the queue grows.",
        needs="--forward",
    ),
    _counter(
        "otel_fr_collector_forward_requests_dropped",
        "requests",
        "Requests dropped on the way to a backend.",
        *(_BACKEND, Label("reason", _DROPPED_REASONS)),
        act="Act when it grows, by its reason (OtelFrForwardDrops).",
        needs="--forward",
    ),
    _gauge(
        "otel_fr_collector_forward_queue_bytes",
        "bytes",
        "Size of the requests waiting for a backend.",
        _BACKEND,
        act="Act when it nears its capacity.",
        needs="--forward",
    ),
    _gauge(
        "otel_fr_collector_forward_queue_capacity_bytes",
        "bytes",
        "Limit of forward_queue_bytes (--forward-queue-size).",
        _BACKEND,
        needs="--forward",
    ),
    _gauge(
        "otel_fr_collector_forward_queue_up",
        "0 or 1",
        "0: the file of the queues (--data) cannot be used, and requests wait in memory only.",
        act="Act when it is 0: the disk is full or broken (OtelFrStoreDown).",
        needs="--forward",
    ),
)
_PUBLISHING = (
    _gauge(
        "otel_fr_collector_store_up",
        "0 or 1",
        "1: every incident is on disk or in the database of --store; 0: some are in memory only.",
        act="Act when it is 0: the disk is full or broken, or the database is down (OtelFrStoreDown).",
        needs="--data or --store",
    ),
    _counter(
        "otel_fr_collector_deliveries",
        "deliveries",
        "Requests with incidents: sent, failed (repeated later), or rejected by the receiver. And alerts and incident"
        " changes that were dropped from a full queue.",
        *(_OUTLET, Label("outcome", ("sent", "failed", "rejected", "dropped"))),
        act="Act when any but sent grows (OtelFrDeliveriesFail).",
        needs=_DELIVERY,
    ),
)
_PORTS = (
    _counter(
        "otel_fr_collector_output_lines_dropped",
        "log lines, printed incidents",
        "Log lines (stderr) and printed incidents (stdout) dropped because nothing read or stored them.",
        Label("stream", ("stdout", "stderr")),
        act="Act when it grows: the reader of the collector's output hangs, or its disk is full. Alerts are not"
        " affected.",
    ),
    _gauge(
        "otel_fr_collector_tls_certificate_expiry_timestamp_seconds",
        "Unix time in seconds",
        "Expiry time of the ports' certificate.",
        act="Act when it is less than a week ahead: renew the files of --tls-cert and --tls-key.",
        needs="--tls-cert",
    ),
)

SECTIONS: dict[str, tuple[Family, ...]] = {
    "Jobs": _JOBS,
    "Collectives": _NUMBERS,
    "Requests": _REQUESTS,
    "Judging": _JUDGING,
    "Memory": _MEMORY,
    "Forwarding": _FORWARDING,
    "Incidents": _PUBLISHING,
    "Ports and output": _PORTS,
}
"""All families, by section of docs/reference/metrics.md."""
FAMILIES: dict[str, Family] = {family.name: family for families in SECTIONS.values() for family in families}


def empty(kind: Callable[..., M], name: str) -> M:
    """A metric of prometheus_client without samples.

    Args:
        kind: the metric's class.
        name: name of the family, which has the help text and the labels.
    """
    family = FAMILIES[name]
    return kind(family.name, family.help, labels=family.label_names)


def largest(kind: Callable[..., M], name: str, found: Mapping[tuple[str, ...], float], count: int) -> M:
    """A metric with the ``count`` highest values. ``found``: all values, by labels."""
    family: Any = empty(kind, name)
    for labels in heapq.nlargest(count, found, key=lambda key: found[key]):
        family.add_metric(labels, found[labels])
    return cast("M", family)


def reference() -> str:
    """The metrics as the Markdown tables of docs/reference/metrics.md."""
    lines: list[str] = []
    for section, families in SECTIONS.items():
        lines += ["", f"## {section}", "", "| metric | type, unit | labels | what it says, and when to act |"]
        lines.append("|---|---|---|---|")
        lines += [_row(family) for family in families]
    return "\n".join(lines[1:]) + "\n"


def _row(family: Family) -> str:
    name = family.name + ("_total" if family.type == "counter" else "")
    labels = "; ".join(
        f"`{label.name}`" + f": {', '.join(label.values)}" * bool(label.values) for label in family.labels
    )
    labels = "labels of calls" if family.labels == _SERIES else labels
    needs = f"Only with {family.needs}." if family.needs else ""
    text = " ".join(filter(None, (family.text, needs, family.act)))
    return f"| `{name}` | {family.type}, {family.unit} | {labels} | {text} |"
