"""Every environment variable that otel-fr reads, in one place (docs/reference/environment.md lists them).

`otel_fr.checks.settings` has the meaning of the variables of node checks. OpenTelemetry's own exporters read the
``OTEL_EXPORTER_OTLP_*`` transport settings (headers, TLS, compression, timeouts); here, they only decide whether
otel-fr is active.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_log = logging.getLogger("otel_fr")

DEFAULT_BUFFER_SIZE = 20_000
DEFAULT_STALL_SECONDS = 5.0
STALL_SHARE = 0.8
"""Share of the stall time after which a rank's monitor sends evidence and writes a file, so that the evidence has
reached the collector by the end of the stall time."""
MAX_BUFFER_SIZE = 10_000_000
MAX_INHERITED_BUFFER_SIZE = 100_000
"""Limit for PyTorch's variables: they count entries, but users often set bytes (2097152 would take 448 MiB a rank)."""
CERTIFICATE_VARIABLE = "OTEL_EXPORTER_OTLP_CERTIFICATE"
"""For the OTLP endpoint, and for requests of ranks and launchers to the collector's HTTP address."""
COLLECTOR_VARIABLE = "OTEL_FR_COLLECTOR"
ATTEMPT_VARIABLE = "OTEL_FR_ATTEMPT"
NODES_CHANGED_VARIABLE = "OTEL_FR_NODES_CHANGED"
"""Set by `otel_fr.rendezvous`: a file that exists once the ranks of this attempt end because nodes join."""
TOKEN_VARIABLE = "OTEL_FR_TOKEN"  # noqa: S105  its name, not a token
DEFAULT_COLLECTOR = "http://127.0.0.1:8080"
"""The collector's address for ``otel-fr top``, ``otel-fr incidents`` and checks. Ranks do not read these variables."""
DUMP_FORMATS = ("pickle", "json", "both")
CAPTURES = ("auto", "hook")
CAPTURE_VARIABLE = "OTEL_FR_CAPTURE"
RECORDER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""PyTorch's variables: how many entries its recorder keeps. PyTorch uses the first that is set (FlightRecorder.hpp)."""
CAPTURE_ENGINES = ("auto", "compiled", "python")
PEER_FAILURE_ACTIONS = ("ignore", "abort", "exit")
ON_PEER_FAILURE = "OTEL_FR_ON_PEER_FAILURE"
DEFAULT_PEER_TIMEOUT = 5.0
DEFAULT_EXIT_GRACE = 10.0
EXPORTERS = {"traces": "OTEL_TRACES_EXPORTER", "logs": "OTEL_LOGS_EXPORTER", "metrics": "OTEL_METRICS_EXPORTER"}
"""Signal -> the variable that switches it off with ``none``."""
METRIC_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
DEFAULT_METRIC_INTERVAL = 15.0
"""Seconds. OpenTelemetry's default of a minute is long for a user who waits for the first numbers of a job."""
SAMPLERS = (
    "parentbased_always_on",
    "always_on",
    "parentbased_always_off",
    "always_off",
    "parentbased_traceidratio",
    "traceidratio",
)
"""Names that OpenTelemetry's SDK knows (``opentelemetry.sdk.trace.sampling``), its default first. Spans of calls have
no parent, so ``parentbased_`` changes nothing."""
SAMPLER_RATIO = "OTEL_TRACES_SAMPLER_ARG"
NATIVE_STACKS = ("auto", "off")
HANG_ACTIONS = ("alert", "dump", "kill")
MAX_QUEUE_SIZE, MAX_BATCH_SIZE, MAX_SPAN_DELAY = 100_000, 2_048, 60.0
"""Greatest values of ``OTEL_BSP_MAX_QUEUE_SIZE``, ``OTEL_BSP_MAX_EXPORT_BATCH_SIZE`` (spans) and
``OTEL_BSP_SCHEDULE_DELAY`` (seconds): the monitor's memory is bounded."""
MAX_SECONDS = 10 * 365 * 86_400.0  # of a time limit; a longer one counts as none

CHECK_OPTIONS = (
    "OTEL_FR_CHECKS",
    "OTEL_FR_CHECK_ADVISORY",
    "OTEL_FR_CHECK_PATHS",
    "OTEL_FR_CHECK_SPACE",
    "OTEL_FR_CHECK_TIMEOUT",
    "OTEL_FR_CHECK_GPUS",
    "OTEL_FR_CHECK_GPU_MEMORY_TIMEOUT",
    "OTEL_FR_CHECK_NODE_HEALTH",
    "OTEL_FR_CHECK_NODE_HEALTH_ARGS",
)
ATTRIBUTION_OPTIONS = ("OTEL_FR_ATTRIBUTION", "OTEL_FR_ATTRIBUTION_SECONDS")
VARIABLES = frozenset(
    {
        *CHECK_OPTIONS,
        *ATTRIBUTION_OPTIONS,
        "OTEL_FR_NODE_RANK",
        "OTEL_FR_ENABLED",
        "OTEL_FR_BUFFER_SIZE",
        "OTEL_FR_RING_DIR",
        CAPTURE_VARIABLE,
        "OTEL_FR_CAPTURE_ENGINE",
        "OTEL_FR_STALL_SECONDS",
        ON_PEER_FAILURE,
        "OTEL_FR_PEER_TIMEOUT",
        "OTEL_FR_EXIT_GRACE",
        "OTEL_FR_JOB_ID",
        ATTEMPT_VARIABLE,
        NODES_CHANGED_VARIABLE,
        "OTEL_FR_HEARTBEAT_TIMEOUT",
        "OTEL_FR_FIRST_HEARTBEAT_TIMEOUT",
        "OTEL_FR_SECTION_TIMEOUTS",
        "OTEL_FR_OUTSIDE_TIMEOUT",
        "OTEL_FR_NATIVE_STACKS",
        "OTEL_FR_ON_HANG",
        "OTEL_FR_DUMP_DIR",
        "OTEL_FR_DUMP_FORMAT",
        COLLECTOR_VARIABLE,
        TOKEN_VARIABLE,
    }
)
"""All variables of otel-fr, for ranks, launchers and terminals."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_TORCHS_TRUE = frozenset({"y", "yes", "1", "t", "true"})
"""Values that ``getCvarBool`` of torch's Utils.hpp takes for true."""
_BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
_SWITCHES = {
    "OTEL_FR_ENABLED": {"0", "false", "no", "off"},
    "OTEL_SDK_DISABLED": {"true"},
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": {"otel_fr", "otel-fr", "*"},
}  # variables that switch recording off if they have one of these words
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT")


def has_endpoint(env: Mapping[str, str] = os.environ) -> bool:
    """True if an OTLP endpoint is set."""
    return any(env.get(name, "").strip() for name in ENDPOINTS)


def is_enabled(env: Mapping[str, str] = os.environ) -> bool:
    """True if this process should record: an OTLP endpoint or ``OTEL_FR_ENABLED=1`` is set, and nothing disables it."""
    return not disabled_by(env) and (env.get("OTEL_FR_ENABLED", "").strip().lower() in _TRUE or has_endpoint(env))


def disabled_by(env: Mapping[str, str]) -> str:
    """Return the variable that switches recording off; "": none does."""
    given = {name: {word.strip().lower() for word in env.get(name, "").split(",")} for name in _SWITCHES}
    return next((name for name, words in _SWITCHES.items() if words & given[name]), "")


def service_name() -> str:
    """Return ``service.name`` as the user gives it; "": it is not given."""
    own = _sendable(os.environ.get("OTEL_SERVICE_NAME", "").strip())
    return own or resource_attributes().get("service.name", "")


def acts_on_peer_failure() -> bool:
    """True if calls must be ended when a peer has failed (``OTEL_FR_ON_PEER_FAILURE`` is ``abort`` or ``exit``)."""
    return os.environ.get(ON_PEER_FAILURE, "").strip().lower() in PEER_FAILURE_ACTIONS[1:]


def resource_attributes(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the attributes of ``OTEL_RESOURCE_ATTRIBUTES`` by name; items of another form are left out."""
    text = env.get("OTEL_RESOURCE_ATTRIBUTES")
    if not text:
        return {}
    from urllib.parse import unquote  # not where the variable is not set

    given = (item.split("=", 1) for item in text.split(",") if "=" in item)
    return {name.strip(): _sendable(unquote(value.strip())) for name, value in given}


def _sendable(text: str) -> str:
    """Return text that telemetry can hold: a variable's value may be any bytes."""
    return text.encode("utf-8", "replace").decode()


def _number(env: Mapping[str, str], names: tuple[str, ...], default: float, low: float, high: float) -> float:
    """Return the value of the first usable variable, or ``default``. Warn about unusable ones before it."""
    unusable: list[tuple[str, str]] = []
    used = default
    for name in names:
        text = env.get(name, "").strip()
        if not text:
            continue
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if low <= value <= high:
            used = value
            break
        unusable.append((name, text))
    for name, text in unusable:
        _log.warning("%s=%.100r is not a number from %g to %g; using %g", name, text, low, high, used)
    return used


def is_recorder_off(env: Mapping[str, str] = os.environ) -> bool:
    """True if the environment switches PyTorch's own recorder off: with a size of 0 or less."""
    text = next((text for name in RECORDER_SIZES if (text := env.get(name, "").strip())), "1")
    try:
        return int(text) <= 0
    except ValueError:
        return False


def _capture(env: Mapping[str, str]) -> str:
    """Return ``OTEL_FR_CAPTURE``, or "hook" if PyTorch's recorder is switched off or would show wrong states.

    With ``TORCH_NCCL_BLOCKING_WAIT``, no watchdog retires calls, and an old entry has the state of a later call that
    was given the same event (torch 2.14.1).
    """
    capture = _choice(env, CAPTURE_VARIABLE, CAPTURES)
    is_blocking = any(env.get(name, "").strip().lower() in _TORCHS_TRUE for name in _BLOCKING)
    return "hook" if is_recorder_off(env) or is_blocking else capture


def _integer(env: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    return int(_number(env, names, default, 0, 2**31))


def _choice(env: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """Return the variable's value in lower case. If it is none of ``values``, warn and return the first of them."""
    text = env.get(name, "").strip().lower() or values[0]
    if text in values:
        return text
    _log.warning("%s=%.100r is not one of %s; using %s", name, text, ", ".join(values), values[0])
    return values[0]


def _timeouts(env: Mapping[str, str], name: str) -> dict[str, float]:
    """Return seconds by name, from ``"loading:30,evaluation:3600"``. Items without this form cause one warning."""
    found, unusable = dict[str, float](), list[str]()
    for item in filter(str.strip, env.get(name, "").split(",")):
        key, _, text = item.rpartition(":")
        try:
            seconds = float(text)
        except ValueError:
            seconds = float("nan")
        if key.strip() and 0 < seconds <= MAX_SECONDS:
            found[key.strip()] = seconds
        else:
            unusable.append(item)
    if unusable:
        _log.warning("ignoring %s: %.100r is not a name, a colon and seconds above 0", name, unusable[0])
    return found


LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
"""Variables of torchrun and similar launchers, of Slurm's ``srun`` and of Open MPI's ``mpirun``."""


def _sampling_ratio(env: Mapping[str, str]) -> float | None:
    """Return `Config.sampling_ratio`. As in the SDK, it is 1 if the sampler is unknown or no ratio is given."""
    sampler = _choice(env, "OTEL_TRACES_SAMPLER", SAMPLERS)
    if not sampler.endswith("traceidratio"):
        return None if sampler.endswith("off") else 1.0
    if not env.get(SAMPLER_RATIO, "").strip():
        _log.warning("OTEL_TRACES_SAMPLER=%s without %s; using 1", sampler, SAMPLER_RATIO)
    return _number(env, (SAMPLER_RATIO,), 1.0, 0.0, 1.0)


@dataclass(frozen=True)
class SpanBatching:
    """How spans are sent, from OpenTelemetry's variables of the batch span processor (``OTEL_BSP_...``).

    Attributes:
        delay: longest time for which a span waits to be sent with others, seconds.
        queue_size: spans that wait; if there are more, the oldest are dropped.
        batch_size: spans of one request. A request of 2,048 spans and its copies inside gRPC take 30 MB, more than the
            rest of the monitor.
        timeout: longest time for one request, seconds; the exporter's limit (``OTEL_EXPORTER_OTLP_TIMEOUT``) holds too.
    """

    delay: float = 1.0
    queue_size: int = 20_000
    batch_size: int = 512
    timeout: float = 30.0

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> SpanBatching:
        """Unusable values fall back to the default with one warning each."""
        queue = int(_number(env, ("OTEL_BSP_MAX_QUEUE_SIZE",), cls.queue_size, 1, MAX_QUEUE_SIZE))
        most = min(queue, MAX_BATCH_SIZE)
        return cls(
            delay=_number(env, ("OTEL_BSP_SCHEDULE_DELAY",), cls.delay * 1e3, 1, MAX_SPAN_DELAY * 1e3) / 1e3,
            queue_size=queue,
            batch_size=int(_number(env, ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE",), min(cls.batch_size, most), 1, most)),
            timeout=_number(env, ("OTEL_BSP_EXPORT_TIMEOUT",), cls.timeout * 1e3, 1, 600e3) / 1e3,
        )


@dataclass(frozen=True)
class Config:
    """Settings of one rank, read once when its first process group is created.

    Attributes:
        local_world_size: number of ranks on this machine; 0: not known.
        node_rank: number of this machine in the job; 0: it is the first, or not known.
        buffer_size: records kept in the ring.
        stall_seconds: seconds in flight after which a rank counts as waiting.
        dump_dir: folder of the flight-recorder files; None: ``~/.cache/otel-fr/JOB_ID``.
        dump_prefix: path prefix given by TORCH_FR_DUMP_TEMP_FILE or TORCHCOMM_FR_DUMP_TEMP_FILE, or None.
        dump_whole_name: ``dump_prefix`` is the full file name (TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME).
        ring_dir: folder of the ring file; None: /dev/shm, else the temporary folder.
        capture: one of `CAPTURES`. "hook": PyTorch's own recorder is not read; "auto": it is read if it knows more.
        capture_engine: one of `CAPTURE_ENGINES`.
        on_peer_failure: one of `PEER_FAILURE_ACTIONS`.
        peer_timeout: seconds without a report after which a rank that others wait for counts as failed.
        exit_grace: seconds after which a rank that must end is ended by force.
        heartbeat_timeout: seconds from one heartbeat to the next; 0: no limit.
        first_heartbeat_timeout: seconds from `RankMonitorClient.init_workload_monitoring` to the first heartbeat; 0: no
            limit.
        section_timeouts: name -> seconds, of sections whose program gives no timeout.
        outside_timeout: seconds without an open section, once one has ended; 0: no limit.
        native_stacks: one of `NATIVE_STACKS`; "auto": record the stacks of a stuck rank if py-spy is installed.
        on_hang: one of `HANG_ACTIONS`, what the monitor does when a limit has passed.
        metric_interval: seconds between two requests of metrics.
        sampling_ratio: share of the traces whose spans are sent, 0 to 1; None: no span is sent.
        span_batching: how spans are sent.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 0
    node_rank: int = 0
    job_id: str = ""
    attempt: int = 0
    nodes_changed: str = ""
    buffer_size: int = DEFAULT_BUFFER_SIZE
    stall_seconds: float = DEFAULT_STALL_SECONDS
    dump_dir: Path | None = None
    dump_format: str = "pickle"
    dump_prefix: str | None = None
    dump_whole_name: bool = False
    ring_dir: Path | None = None
    capture: str = "auto"
    capture_engine: str = "python"
    heartbeat_timeout: float = 0.0
    first_heartbeat_timeout: float = 0.0
    section_timeouts: Mapping[str, float] = field(default_factory=dict)
    outside_timeout: float = 0.0
    native_stacks: str = "auto"
    on_hang: str = "alert"
    export: bool = True
    on_peer_failure: str = "ignore"
    peer_timeout: float = DEFAULT_PEER_TIMEOUT
    exit_grace: float = DEFAULT_EXIT_GRACE
    metric_interval: float = DEFAULT_METRIC_INTERVAL
    sampling_ratio: float | None = 1.0
    span_batching: SpanBatching = field(default_factory=SpanBatching)

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Config:
        """Read the environment. Unusable values fall back to the default with one warning each; never raises."""
        job_id = env.get("OTEL_FR_JOB_ID", "") or env.get("TORCHELASTIC_RUN_ID", "")
        if job_id in ("", "none"):  # torchrun's run id when none was given
            job_id = env.get("SLURM_JOB_ID", "") or env.get("LSB_JOBID", "") or env.get("PBS_JOBID", "")
        own_dir = env.get("OTEL_FR_DUMP_DIR", "").strip()
        torch_prefix = env.get("TORCH_FR_DUMP_TEMP_FILE", "").strip()
        comms_prefix = env.get("TORCHCOMM_FR_DUMP_TEMP_FILE", "").strip()
        prefix = None if own_dir else torch_prefix or comms_prefix or None
        ring_dir = env.get("OTEL_FR_RING_DIR", "").strip()
        of_torch = () if is_recorder_off(env) else RECORDER_SIZES
        inherited = min(_number(env, of_torch, DEFAULT_BUFFER_SIZE, 1, MAX_BUFFER_SIZE), MAX_INHERITED_BUFFER_SIZE)
        return cls(
            rank=_integer(env, ("RANK",), 0),
            local_rank=_integer(env, LOCAL_RANKS, 0),
            world_size=_integer(env, ("WORLD_SIZE",), 1),
            local_world_size=_integer(env, ("LOCAL_WORLD_SIZE",), 0),
            node_rank=_integer(env, ("GROUP_RANK", "SLURM_NODEID"), 0),
            job_id=_sendable(job_id),
            nodes_changed=env.get(NODES_CHANGED_VARIABLE, ""),
            attempt=_integer(env, (ATTEMPT_VARIABLE, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"), 0),
            buffer_size=int(_number(env, ("OTEL_FR_BUFFER_SIZE",), inherited, 1, MAX_BUFFER_SIZE)),
            stall_seconds=_number(env, ("OTEL_FR_STALL_SECONDS",), DEFAULT_STALL_SECONDS, 0.1, 86_400),
            dump_dir=Path(own_dir) if own_dir else None,
            dump_format=_choice(env, "OTEL_FR_DUMP_FORMAT", DUMP_FORMATS),
            dump_prefix=prefix,
            dump_whole_name=bool(
                prefix
                and not torch_prefix
                and env.get("TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME", "").strip().lower() in _TRUE
            ),
            ring_dir=Path(ring_dir) if ring_dir else None,
            capture=_capture(env),
            capture_engine=_choice(env, "OTEL_FR_CAPTURE_ENGINE", CAPTURE_ENGINES),
            on_peer_failure=_choice(env, ON_PEER_FAILURE, PEER_FAILURE_ACTIONS),
            peer_timeout=_number(env, ("OTEL_FR_PEER_TIMEOUT",), DEFAULT_PEER_TIMEOUT, 1.0, 86_400),
            exit_grace=_number(env, ("OTEL_FR_EXIT_GRACE",), DEFAULT_EXIT_GRACE, 0.0, 86_400),
            heartbeat_timeout=_number(env, ("OTEL_FR_HEARTBEAT_TIMEOUT",), 0.0, 0.0, MAX_SECONDS),
            first_heartbeat_timeout=_number(env, ("OTEL_FR_FIRST_HEARTBEAT_TIMEOUT",), 0.0, 0.0, MAX_SECONDS),
            section_timeouts=_timeouts(env, "OTEL_FR_SECTION_TIMEOUTS"),
            outside_timeout=_number(env, ("OTEL_FR_OUTSIDE_TIMEOUT",), 0.0, 0.0, MAX_SECONDS),
            native_stacks=_choice(env, "OTEL_FR_NATIVE_STACKS", NATIVE_STACKS),
            on_hang=_choice(env, "OTEL_FR_ON_HANG", HANG_ACTIONS),
            metric_interval=_number(env, (METRIC_INTERVAL,), DEFAULT_METRIC_INTERVAL * 1e3, 100, 86_400e3) / 1e3,
            sampling_ratio=_sampling_ratio(env),
            span_batching=SpanBatching.from_env(env),
            export=has_endpoint(env) and env.get("OTEL_TRACES_EXPORTER", "").strip().lower() != "none",
        )
