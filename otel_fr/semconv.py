"""Every OpenTelemetry name that otel-fr sends or reads: attributes, events, error types.

One name per constant, so that a search finds its writer and its readers. Names follow
OpenTelemetry's rules (lower case, dots for namespaces, snake_case inside). OpenTelemetry has no
convention for collectives, so ours begin with ``torch.``; ``service.*``, ``host.*``,
``process.*``, ``k8s.*``, ``thread.*``, ``code.*``, ``exception.*``, ``file.*`` and ``error.type``
are OpenTelemetry's own. It has none for Slurm either; ``slurm.*`` follow Slurm's own words.
"""

from typing import Final

SCOPE_NAME: Final = "otel_fr"

# Resource: one per rank process, sent once per batch.
SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
HOST_NAME: Final = "host.name"
PROCESS_PID: Final = "process.pid"
RANK: Final = "torch.rank"
LOCAL_RANK: Final = "torch.local_rank"
GPU: Final = "torch.gpu"
"""Index or UUID of the rank's GPU on its host."""
WORLD_SIZE: Final = "torch.world_size"
JOB_ID: Final = "torch.job.id"
JOB_ATTEMPT: Final = "torch.job.attempt"
RUN_ID: Final = "torch.run.id"
"""``identity.run_id``: distinguishes two runs with the same job id and attempt."""
REPLICA_ID: Final = "torchft.replica.id"
QUORUM_ID: Final = "torchft.quorum.id"
"""Of a torchft job: its replica, as the job names it, and the quorum of the run."""

# Resource, if the rank's environment has them: `otel_fr.platform_attributes`.
SLURM_JOB_ID: Final = "slurm.job.id"
SLURM_JOB_NAME: Final = "slurm.job.name"
SLURM_JOB_ACCOUNT: Final = "slurm.job.account"
SLURM_JOB_PARTITION: Final = "slurm.job.partition"
SLURM_ARRAY_JOB_ID: Final = "slurm.array.job.id"
SLURM_ARRAY_TASK_ID: Final = "slurm.array.task.id"
SLURM_STEP_ID: Final = "slurm.step.id"
SLURM_CLUSTER_NAME: Final = "slurm.cluster.name"
SLURM_NODE_NAME: Final = "slurm.node.name"
K8S_POD_NAME: Final = "k8s.pod.name"
K8S_POD_UID: Final = "k8s.pod.uid"
K8S_NAMESPACE: Final = "k8s.namespace.name"
K8S_NODE_NAME: Final = "k8s.node.name"
K8S_CONTAINER_NAME: Final = "k8s.container.name"

# Span: one per collective call of one rank.
OPERATION: Final = "torch.collective.operation"
KIND: Final = "torch.collective.kind"
SEQUENCE_ID: Final = "torch.collective.sequence_id"
OP_ID: Final = "torch.collective.op_id"
BACKEND: Final = "torch.collective.backend"
STATE: Final = "torch.collective.state"
INPUT_SIZES: Final = "torch.collective.input.sizes"
OUTPUT_SIZES: Final = "torch.collective.output.sizes"
INPUT_DTYPES: Final = "torch.collective.input.dtypes"
OUTPUT_DTYPES: Final = "torch.collective.output.dtypes"
INPUT_BYTES: Final = "torch.collective.input.bytes"
OUTPUT_BYTES: Final = "torch.collective.output.bytes"
INPUT_SPLITS: Final = "torch.collective.input.splits"
OUTPUT_SPLITS: Final = "torch.collective.output.splits"
REDUCE_OP: Final = "torch.collective.reduce_op"
ROOT: Final = "torch.collective.root"
PEER: Final = "torch.collective.peer"
TAG: Final = "torch.collective.tag"
ANY_SOURCE: Final = "torch.collective.any_source"
"""True: it is unknown which message the receive gets: it takes any source, or follows a receive that does."""
PAIR_INDEX: Final = "torch.collective.pair_index"
"""p2p: number of earlier sends (or receives) with this peer and tag in the group."""
RECORD_ID: Final = "torch.collective.record_id"
"""Position of the call in its rank's ring; orders one rank's calls."""
TIMEOUT: Final = "torch.collective.timeout_ms"
END_SEEN: Final = "torch.collective.end_seen"
"""True: the span ends when a thread of PyTorch or the monitor saw the call's end; absent: it ends with the call."""
CAPTURED: Final = "torch.collective.captured"
"""True: the call was captured into a CUDA graph, and not executed then."""
DEVICE_DELAY: Final = "torch.collective.device.delay_ms"
"""Time from enqueueing the call to its begin on the device."""
DEVICE_DURATION: Final = "torch.collective.device.duration_ms"
"""How long the device executed the call, by the device's clock."""
GROUP_ID: Final = "torch.process_group.id"
GROUP_NAME: Final = "torch.process_group.name"
GROUP_DESCRIPTION: Final = "torch.process_group.description"
GROUP_SIZE: Final = "torch.process_group.size"
NEW_GROUP_NAME: Final = "torch.collective.new_group.name"
NEW_GROUP_DESCRIPTION: Final = "torch.collective.new_group.description"
NEW_GROUP_RANKS: Final = "torch.collective.new_group.ranks"
"""The process group that a call creates, with its ranks as `identity.encode_ranks` writes them."""
NEW_GROUP_AWAITS_ALL: Final = "torch.collective.new_group.awaits_all"
CODE_FUNCTION: Final = "code.function.name"
CODE_FILE: Final = "code.file.path"
CODE_LINE: Final = "code.line.number"
CODE_STACKTRACE: Final = "code.stacktrace"
ERROR_TYPE: Final = "error.type"

# Span: one per section or step of one rank. STEP is also on the spans of calls made in it.
STEP: Final = "torch.step"
STEP_SOURCE: Final = "torch.step.source"
SECTION: Final = "torch.section.name"
SECTION_TIMEOUT: Final = "torch.section.timeout_ms"
SECTION_LEFT: Final = "torch.section.left"
THREAD_ID: Final = "thread.id"

# Metrics: of one rank, cumulative. Units as UCUM writes them.
METRIC_CALLS: Final = "torch.collective.calls"
METRIC_IO: Final = "torch.collective.io"
METRIC_DURATION: Final = "torch.collective.duration"
METRIC_DEVICE_DELAY: Final = "torch.collective.device.delay"
METRIC_DEVICE_DURATION: Final = "torch.collective.device.duration"
DEVICE_SOURCE: Final = "torch.collective.device.source"
DEVICE_SOURCE_INSPECTOR: Final = "nccl_inspector"
"""On points of `METRIC_DEVICE_DURATION` that NCCL Inspector has measured; absent: PyTorch's recorder."""
METRIC_IN_FLIGHT: Final = "torch.collective.in_flight"
METRIC_STEP_DURATION: Final = "torch.step.duration"
RANK_METRICS: Final = frozenset(
    {
        METRIC_CALLS,
        METRIC_IO,
        METRIC_DURATION,
        METRIC_DEVICE_DELAY,
        METRIC_DEVICE_DURATION,
        METRIC_IN_FLIGHT,
        METRIC_STEP_DURATION,
    }
)
UNIT_CALLS: Final = "{call}"
UNIT_BYTES: Final = "By"
UNIT_SECONDS: Final = "s"
DTYPE_CLASS: Final = "torch.collective.dtype"
SIZE_CLASS: Final = "torch.collective.size"
"""On metrics, with `OPERATION`, `BACKEND`, `GROUP_DESCRIPTION`, `GROUP_SIZE`, `ERROR_TYPE`. Classes keep series few."""
OTHER: Final = "_OTHER"
"""Value of all attributes in the series for calls without a series of their own. The word is OpenTelemetry's."""

# Events (log records with an event name). Their body is the rank report of docs/reference/rank-report.md.
EVENT_STARTED: Final = "torch.rank.started"
EVENT_PROGRESS: Final = "torch.rank.progress"
EVENT_STALLED: Final = "torch.collective.stalled"
EVENT_IDLE: Final = "torch.rank.idle"
EVENT_OVERDUE: Final = "torch.rank.overdue"
EVENT_CALLS: Final = "torch.rank.calls"
EVENT_NCCL_RAS: Final = "torch.rank.nccl_ras"
EVENT_STACKS: Final = "torch.rank.stacks"
EVENT_EXCEPTION: Final = "torch.rank.exception"
EVENT_EXITED: Final = "torch.rank.exited"
EVENT_DUMP_WRITTEN: Final = "torch.flight_recorder.written"
EVENT_DUMP_FAILED: Final = "torch.flight_recorder.failed"
EVENT_PEER_FAILED: Final = "torch.rank.peer_failed"
EVENT_CALLS_ENDED: Final = "torch.rank.calls_ended"
EVENT_QUORUM: Final = "torchft.quorum.formed"
QUORUM_REPLICAS: Final = "torchft.quorum.replicas"
"""On that event: how many replicas take part."""

# Event of a rank that requests an action on its node or its job.
EVENT_WORKLOAD_CONTROL: Final = "otel_fr.workload_control"
WORKLOAD_ACTION: Final = "otel_fr.workload_control.action"
WORKLOAD_DESCRIPTION: Final = "otel_fr.workload_control.description"
WORKLOAD_CONTINUE: Final = "continue"
WORKLOAD_EXCLUDE_NODE: Final = "exclude_node"
WORKLOAD_STOP: Final = "stop"
WORKLOAD_ACTIONS: Final = (WORKLOAD_CONTINUE, WORKLOAD_EXCLUDE_NODE, WORKLOAD_STOP)

# Event of a node whose check failed before its ranks start or restart. Its body is the reason, as text.
EVENT_CHECK_FAILED: Final = "otel_fr.check_failed"
CHECK_KIND: Final = "otel_fr.check.kind"
CHECK_TARGET: Final = "otel_fr.check.target"
CHECK_STATUS: Final = "otel_fr.check.status"

EXIT_CODE: Final = "process.exit.code"
EXIT_SIGNAL: Final = "torch.rank.exit.signal"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
THREAD_NAME: Final = "thread.name"
FILE_PATH: Final = "file.path"

# Values of error.type on the span of a call that failed.
ERROR_TIMEOUT: Final = "timeout"
ERROR_FAILED: Final = "collective_failed"
ERROR_RANK_EXITED: Final = "rank_exited"
ERROR_EXCEPTION: Final = "exception"

# Values of KIND.
KIND_COLLECTIVE: Final = "collective"
KIND_P2P: Final = "p2p"
KIND_GROUP: Final = "group"

# Incident trace, created by the collector or `otel-fr analyze --otlp`.
INCIDENT_ID: Final = "torch.incident.id"
INCIDENT_CATEGORY: Final = "torch.incident.category"
INCIDENT_CULPRITS: Final = "torch.incident.culprit_ranks"
INCIDENT_WAITING: Final = "torch.incident.waiting_ranks"
INCIDENT_STUCK_ON: Final = "torch.incident.stuck_on"
INCIDENT_CAUSED_BY: Final = "torch.incident.caused_by"
INCIDENT_REVISION: Final = "torch.incident.revision"
INCIDENT_RESOLVED: Final = "torch.incident.resolved"
"""The incident's id, on the span that shows how long the incident lasted."""
INCIDENT_RESOLUTION: Final = "torch.incident.resolution"
"""Why the incident was resolved, on the same span."""
PROVISIONAL: Final = "torch.span.provisional"
"""True: the call has not ended. When it has, its rank sends the call's final span, under another id."""

# Metadata of the control stream (docs/reference/rank-report.md).
REPORT_INTERVAL_METADATA = "otel-fr-report-interval"
