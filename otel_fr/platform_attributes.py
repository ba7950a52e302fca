"""Where a process runs, as resource attributes: from environment variables of Slurm and Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_fr import semconv as names
from otel_fr.encodable import encodable

MAX_VALUE: Final = 256
"""Characters of a value. Names in Kubernetes have at most 253 (RFC 1123), and resources are sent with each request."""

_IN_SLURM: Final = "SLURM_JOB_ID"
_SLURM: Final = {
    names.SLURM_JOB_ID: (_IN_SLURM,),
    names.SLURM_JOB_NAME: ("SLURM_JOB_NAME",),
    names.SLURM_JOB_ACCOUNT: ("SLURM_JOB_ACCOUNT",),
    names.SLURM_JOB_PARTITION: ("SLURM_JOB_PARTITION",),
    names.SLURM_ARRAY_JOB_ID: ("SLURM_ARRAY_JOB_ID",),
    names.SLURM_ARRAY_TASK_ID: ("SLURM_ARRAY_TASK_ID",),
    names.SLURM_STEP_ID: ("SLURM_STEP_ID",),
    names.SLURM_CLUSTER_NAME: ("SLURM_CLUSTER_NAME",),
    names.SLURM_NODE_NAME: ("SLURMD_NODENAME",),
}
_IN_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"
"""Set in every container of a pod. The manifest's author chooses among the names below. Elsewhere they mean other
things: Jenkins also sets NODE_NAME."""
_KUBERNETES: Final = {
    names.K8S_POD_NAME: ("POD_NAME", "K8S_POD_NAME", "MY_POD_NAME", "OTEL_RESOURCE_ATTRIBUTES_POD_NAME"),
    names.K8S_POD_UID: ("POD_UID", "K8S_POD_UID", "MY_POD_UID", "OTEL_RESOURCE_ATTRIBUTES_POD_UID"),
    names.K8S_NAMESPACE: ("POD_NAMESPACE", "K8S_NAMESPACE_NAME", "K8S_NAMESPACE", "MY_POD_NAMESPACE"),
    names.K8S_NODE_NAME: ("NODE_NAME", "K8S_NODE_NAME", "MY_NODE_NAME", "OTEL_RESOURCE_ATTRIBUTES_NODE_NAME"),
    names.K8S_CONTAINER_NAME: ("CONTAINER_NAME", "K8S_CONTAINER_NAME"),
}
"""Names in Kubernetes' documentation of the downward API, and in OpenTelemetry's Operator. The first one set counts."""


def platform_attributes(env: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes for which the environment has values. ``OTEL_RESOURCE_ATTRIBUTES`` is not read here."""
    variables: dict[str, tuple[str, ...]] = {}
    if env.get(_IN_SLURM):
        variables |= _SLURM
    if env.get(_IN_KUBERNETES):
        variables |= _KUBERNETES
    found: dict[str, str] = {}
    for name, sources in variables.items():
        value = next((text for source in sources if (text := env.get(source, "").strip())), "")
        if value:
            found[name] = encodable(value[:MAX_VALUE])
    return found
