"""The monitored rank: its names and numbers, and its OTLP resource."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.sdk.resources import Resource as SdkResource

from otel_fr import identity
from otel_fr import semconv as names
from otel_fr.config import Config, resource_attributes
from otel_fr.encodable import encodable
from otel_fr.otlp_attributes import attributes
from otel_fr.platform_attributes import platform_attributes
from otel_fr.ring import EARLIER_RUNS

MAX_NAMED_RANKS = 64
"""Largest job in which span names contain the rank. There must be few names (OpenTelemetry specification, "Span"),
because backends list them and derive metrics from them. With this limit, 100 operations and groups have 6,400 names."""
_NAMESPACE = uuid.UUID("c8b6e0b6-5b0f-5d0f-9d3f-6f74656c6672")
"""UUID namespace of the ranks' instance ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """One rank process of one run."""

    rank: int
    local_rank: int
    world_size: int
    job_id: str
    attempt: int
    run_id: str
    nonce: str
    host: str
    pid: int
    service: str
    session: int = 0
    """Number of earlier runs of this process."""
    first_record: int = 0
    """The run's first record in the ring."""
    errors_before: int = 0
    """How many of the process's recording errors do not concern this run."""
    replica: str = ""
    """torchft's name of the process's replica. Below: the number of the quorum, and how many replicas it has."""
    quorum: int | None = None
    replicas: int = 0
    gpu: str = ""
    pod: str = ""
    node: str = ""
    namespace: str = ""
    """The rank's GPU, and in Kubernetes its pod, its node and the pod's namespace; empty: unknown."""

    @classmethod
    def of(cls, meta: Mapping[str, object], config: Config, pid: int) -> RankIdentity:
        """Read the ring's meta. Missing values come from the environment."""
        job_id = _text(meta, "job_id") or config.job_id
        attempt = _integer(meta, "attempt", config.attempt)
        nonce = _text(meta, "nonce")
        return cls(
            rank=_integer(meta, "rank", config.rank),
            local_rank=_integer(meta, "local_rank", config.local_rank),
            world_size=_integer(meta, "world_size", config.world_size),
            job_id=job_id,
            attempt=attempt,
            run_id=_text(meta, "run_id") or identity.run_id(job_id, attempt, nonce),
            nonce=nonce,
            host=resource_attributes().get(names.HOST_NAME) or _text(meta, "host") or encodable(socket.gethostname()),
            pid=pid,
            service=_text(meta, "service_name"),
            session=_integer(meta, "session", 0),
            first_record=_integer(meta, "first_record", 0),
            errors_before=_integer(meta, "errors_before", 0),
            replica=_text(meta, "replica_id"),
            quorum=_integer(meta, "quorum_id", 0) if "quorum_id" in meta else None,
            replicas=_integer(meta, "replicas", 0),
            gpu=_text(meta, "gpu"),
            pod=_text(meta, "pod"),
            node=_text(meta, "node"),
            namespace=_text(meta, "namespace"),
        )

    @classmethod
    def all_of(cls, meta: Mapping[str, object], config: Config, pid: int) -> list[RankIdentity]:
        """Return the process's identity in each earlier run that the ring's meta contains, and in its present run."""
        earlier = meta.get(EARLIER_RUNS)
        known = [one for one in earlier if isinstance(one, dict)] if isinstance(earlier, list) else []
        before = {**meta, "errors_before": 0}
        return [*(cls.of(before | one, config, pid) for one in known), cls.of(meta, config, pid)]

    @property
    def name_suffix(self) -> str:
        """Suffix of the names of this rank's spans. Lists of spans show only the name and the service."""
        return f" [rank {self.rank}]" if self.world_size <= MAX_NAMED_RANKS else ""

    def resource(self, env: Mapping[str, str] = os.environ) -> Resource:
        """Return the resource described in docs/reference/telemetry.md, including ``OTEL_RESOURCE_ATTRIBUTES`` and
        ``OTEL_SERVICE_NAME``."""
        given = SdkResource.create().attributes
        service = str(given.get(names.SERVICE_NAME) or "unknown_service")
        if service.startswith("unknown_service") and self.service:
            service = self.service
        ours: dict[str, str | int] = {
            names.SERVICE_NAME: service,
            names.SERVICE_INSTANCE_ID: str(uuid.uuid5(_NAMESPACE, f"{self.run_id}/{self.rank}/{self.host}/{self.pid}")),
            names.HOST_NAME: self.host,
            names.PROCESS_PID: self.pid,
            names.RANK: self.rank,
            names.LOCAL_RANK: self.local_rank,
            names.WORLD_SIZE: self.world_size,
            names.JOB_ID: self.job_id,
            names.JOB_ATTEMPT: self.attempt,
            names.RUN_ID: self.run_id,
        }
        if self.gpu:
            ours[names.GPU] = self.gpu
        if self.quorum is not None:
            ours |= {names.REPLICA_ID: self.replica, names.QUORUM_ID: self.quorum}
        for key, text in platform_attributes(env).items():
            ours[key] = text if key not in given else str(given[key])
        # The SDK generates an instance id. Only an id that the user has set replaces otel-fr's.
        chosen = f"{names.SERVICE_INSTANCE_ID}=" in env.get("OTEL_RESOURCE_ATTRIBUTES", "")
        for key, value in given.items():
            if key == names.SERVICE_INSTANCE_ID and not chosen:
                continue
            if key not in ours or key in (names.SERVICE_INSTANCE_ID, names.HOST_NAME):
                ours[key] = value if isinstance(value, int) and not isinstance(value, bool) else str(value)
        return Resource(attributes=attributes(ours))


def _text(meta: Mapping[str, object], key: str) -> str:
    value = meta.get(key)
    return encodable(value) if isinstance(value, str) else ""


def _integer(meta: Mapping[str, object], key: str, default: int) -> int:
    value = meta.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
